# SPDX-License-Identifier: Apache-2.0
"""The command, for a shell of the machine: `PYTHONPATH=vagrant python3 -m scenes up|down|get|list`."""

from __future__ import annotations

import argparse
import sys

from scenes import rules, scene, traffic
from scenes.netns import RUN_DIR
from scenes.topology import CLIENT, NODE4


def main() -> int:
    """Returns 0, or 1 if a request was not answered; 2 for a wrong command line."""
    parser = argparse.ArgumentParser(prog="scenes", description="A small Kubernetes node on this machine's root network.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    up = verbs.add_parser("up", help="build the node, restore a ruleset, start the pods' servers")
    up.add_argument("ruleset", nargs="?", default="http-proxy", choices=[n for n in rules.names() if "proxy" in n])
    up.add_argument("--backend", default="legacy", choices=rules.BACKENDS)
    up.add_argument("--extra", action="append", default=[], metavar="NAME", help="a ruleset to add")
    verbs.add_parser("down", help="remove the node and its rules")
    get = verbs.add_parser("get", help="make HTTP requests from the client")
    get.add_argument("count", nargs="?", type=int, default=1)
    get.add_argument("--addr", default=NODE4)
    get.add_argument("--port", type=int, default=traffic.NODEPORT_HTTP)
    verbs.add_parser("list", help="list the rulesets")
    args = parser.parse_args()
    if args.verb == "up":
        v6 = f"{args.ruleset}-v6"
        scene.up(args.ruleset, *([v6] if v6 in rules.names() else []), backend=args.backend, extra=args.extra)
    elif args.verb == "down":
        scene.down()
    elif args.verb == "list":
        print(*rules.names(), sep="\n")
    else:
        if not (RUN_DIR / CLIENT).exists():
            print("scenes: nothing is up; `python3 -m scenes up` builds it", file=sys.stderr)
            return 1
        replies = [traffic.http_get(args.addr, args.port) for _ in range(args.count)]
        for reply in replies:
            print(f"{reply.body or reply.outcome} ({reply.seconds * 1000:.1f} ms, from port {reply.sport})")
        return int(any(r.outcome != "answered" for r in replies))
    return 0


if __name__ == "__main__":
    sys.exit(main())
