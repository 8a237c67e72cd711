"""All incidents and their healthy twins, one after another; in the lab, as root: `python3 tests/kernel/all_incidents.py`.

The last line is incidents=… found=… false=…: findings that had to be found, those that were, and those that should not be
there. The exit status is 0 when all were found and none is false.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[0:1] = [str(ROOT), str(ROOT / "vagrant")]

import incidents  # noqa: E402
from scenes import scene  # noqa: E402
from scenes.rules import Backend  # noqa: E402
from tests.kernel import incident_runs  # noqa: E402
from tests.kernel.incident_runs import Result  # noqa: E402
from tests.kernel.truth import legacy  # noqa: E402
from tests.kernel.watching import NOTHING, Watch  # noqa: E402
from tracer.kernel.session import Kernel, Session  # noqa: E402

TRIES = 3


def settled(watch: Watch, incident: incidents.Incident, state: str, backend: Backend) -> Result:
    """A run's result; tried again where events were lost, for those prove nothing about what was not found."""
    for _ in range(TRIES):
        watch.lost = 0
        result = incident_runs.run(watch, incident, state, backend)
        if not watch.lost or (result.right, result.false) == (result.expected, 0):
            break
    return result


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--attach", default=os.environ.get("K8SNET_ATTACH", "auto"), choices=("auto", "kprobe"))
    parser.add_argument("--backends", default="legacy,nft", help="of iptables, separated by commas")
    parser.add_argument("--only", type=int, default=0, metavar="NUMBER", help="of one incident")
    options = parser.parse_args()
    legacy.load_modules()
    incident_runs.load_modules()
    kernel, results = Kernel.running(), []
    try:
        with scene.scene(), Session(kernel, NOTHING, only=options.attach) as session:
            watch = Watch(kernel, session)
            for backend in options.backends.split(","):
                for incident in [i for i in incidents.every() if options.only in (0, i.number)]:
                    for state in incident.states:
                        results.append(settled(watch, incident, state, backend))
                        print(results[-1].text, flush=True)
    finally:
        incidents.down()
    wanted, found, false = (sum(values) for values in zip(*((r.expected, r.right, r.false) for r in results), strict=True))
    print(f"incidents={wanted} found={found} false={false}")
    return int(found != wanted or bool(false))


if __name__ == "__main__":
    sys.exit(main())
