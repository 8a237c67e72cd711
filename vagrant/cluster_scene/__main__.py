# SPDX-License-Identifier: Apache-2.0
"""The command inside a machine: `python3 -m cluster_scene up|traffic|drops NODE NODES ...`."""

from __future__ import annotations

import argparse
import json
import sys

from cluster_scene import requests
from cluster_scene.plan import ClusterPlan


def main() -> int:
    """Returns 0; an error is an exception."""
    parser = argparse.ArgumentParser(prog="cluster_scene", description="A node of a cluster, on this machine.")
    parser.add_argument("verb", choices=("up", "traffic", "request", "drops"))
    parser.add_argument("node")
    parser.add_argument("nodes", help="all nodes, with commas between them")
    parser.add_argument("--backend", default="legacy", choices=("legacy", "nft"))
    parser.add_argument("--tcp", type=int, default=10)
    parser.add_argument("--udp", type=int, default=20)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--address", default="", help="of a request of this node's pod `shop`; without it the client asks")
    args = parser.parse_args()
    plan = ClusterPlan.of(args.nodes.split(","))
    node = plan.node(args.node)
    if args.verb in ("up", "drops"):
        from cluster_scene import node as building

        if args.verb == "up":
            building.build(plan, node, args.backend)
        else:
            print(json.dumps(building.count_drops()))
    elif args.verb == "traffic":
        counts = requests.all_kinds(plan, node, args.tcp, args.udp)
        print(json.dumps({kind: {"sent": n.sent, "answered": n.answered, "by": n.by} for kind, n in counts.items()}))
    else:
        from cluster_scene.plan import CLIENT, OUTSIDE4

        source = node.pod("shop").name if args.address else CLIENT
        found = requests.tcp(args.tcp, args.address or OUTSIDE4, args.port, source)
        print(json.dumps({"sent": found.sent, "answered": found.answered, "by": found.by}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
