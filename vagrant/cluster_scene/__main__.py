# SPDX-License-Identifier: Apache-2.0
"""The command inside a machine: `python3 -m cluster_scene up|traffic|fault|ask|drops NODE NODES ...`."""

from __future__ import annotations

import argparse
import json
import sys

from cluster_scene import faults, requests
from cluster_scene.faults import FAULTS
from cluster_scene.plan import CLIENT, OUTSIDE4, ClusterPlan, NodePlan


def namespace_of(node: NodePlan, source: str) -> str | None:
    """The network namespace of who asks; None = that of the node."""
    pods = {pod.name: pod.name for pod in node.pods}
    return CLIENT if source == "client" else pods.get(f"{source}-{node.letter}")


def options() -> argparse.ArgumentParser:
    """The parser of the options."""
    parser = argparse.ArgumentParser(prog="cluster_scene", description="A node of a cluster, on this machine.")
    parser.add_argument("verb", choices=("up", "traffic", "request", "drops", "fault", "ask", "upload", "datagrams"))
    parser.add_argument("node")
    parser.add_argument("nodes", help="all nodes, with commas between them")
    parser.add_argument("--backend", default="legacy", choices=("legacy", "nft"))
    parser.add_argument("--tcp", type=int, default=10)
    parser.add_argument("--udp", type=int, default=20)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--address", default="", help="of a request of this node's pod `shop`; without it the client asks")
    parser.add_argument("--fault", default="none", choices=FAULTS)
    parser.add_argument("--source", default="shop", choices=("shop", "cart", "client", "node"), help="who asks")
    parser.add_argument("--seconds", type=float, default=requests.PATIENCE_SECONDS, help="limit for one request")
    parser.add_argument("--size", type=int, default=0, help="bytes of a request or of a datagram")
    return parser


def main() -> int:
    """Returns 0; an error is an exception."""
    args = options().parse_args()
    plan = ClusterPlan.of(args.nodes.split(","))
    node = plan.node(args.node)
    if args.verb in ("up", "drops", "fault"):
        from cluster_scene import node as building

        if args.verb == "up":
            building.build(plan, node, args.backend)
        elif args.verb == "fault":
            faults.make(plan, node, args.backend, args.fault)
        else:
            print(json.dumps(building.count_drops()))
    elif args.verb == "traffic":
        counts = requests.all_kinds(plan, node, args.tcp, args.udp)
        print(json.dumps({kind: {"sent": n.sent, "answered": n.answered, "by": n.by} for kind, n in counts.items()}))
    elif args.verb in ("ask", "upload", "datagrams"):
        source = namespace_of(node, args.source)
        if args.verb == "ask":
            found = requests.tcp(args.tcp, args.address, args.port, source, args.seconds)
        elif args.verb == "upload":
            found = requests.upload(args.size, args.address, args.port, source, args.seconds)
        else:
            found = requests.single_datagrams(args.udp, args.size, args.address, args.port, source, args.seconds)
        print(json.dumps({"sent": found.sent, "answered": found.answered, "by": found.by}))
    else:
        asking = node.pod("shop").name if args.address else CLIENT
        found = requests.tcp(args.tcp, args.address or OUTSIDE4, args.port, asking)
        print(json.dumps({"sent": found.sent, "answered": found.answered, "by": found.by}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
