# SPDX-License-Identifier: Apache-2.0
"""The command: `python3 vagrant/incidents 3 up [STATE]`, then `3 traffic`, `3 down`. Without a number: lists the incidents."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[0] = str(ROOT)

import incidents  # noqa: E402
from scenes import rules  # noqa: E402


def main() -> int:
    """Returns 0; 2 for a wrong command line."""
    parser = argparse.ArgumentParser(prog="incidents", description="Incidents of real clusters, on this machine's network.")
    parser.add_argument("number", nargs="?", type=int, choices=[i.number for i in incidents.every()])
    parser.add_argument("verb", nargs="?", choices=("up", "traffic", "down"))
    parser.add_argument("state", nargs="?", help="default: the first state of the incident")
    parser.add_argument("--backend", default="legacy", choices=rules.BACKENDS)
    options = parser.parse_args()
    if not options.number or not options.verb:
        for each in incidents.every():
            print(f"{each.number}  {each.title}: {', '.join(each.states)}")
        return 0
    incident = incidents.find(options.number)
    if options.state and options.state not in incident.states:
        parser.error(f"incident {incident.number} has the states {', '.join(incident.states)}")
    if options.verb == "up":
        incident.up(options.state or next(iter(incident.states)), options.backend)
        ports = " ".join(f"--port {port}" for port in incident.ports)
        print(f"Up. Now: k8snet-trace {ports} --objects {incidents.OBJECTS}")
    elif options.verb == "traffic":
        for request, answer in incident.traffic():
            print(f"{request}   {answer}")
    else:
        incidents.down()
    return 0


if __name__ == "__main__":
    sys.exit(main())
