# SPDX-License-Identifier: Apache-2.0
"""Looks for losses in made views, and compares them with the truth: `python -m tests.support.lost_check PACKETS=400000 SEED=1`.

The last line is `packets=… lost=… found=… perhaps=… wrong=0 undecided=…`: packets that were made, those that the network lost,
those that were called lost for certain and perhaps, those of them that came, and those of which nothing was said. The status is
1 if one that came was called lost, or if another finding was certain.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.support.joining_check import BEHIND_NS, in_chunks
from tests.support.made_traffic import EPOCH, LOSSY_NS, MILLI, NODES, SECOND, MadeTraffic
from tracer import cluster_findings
from tracer.cluster.filter_coverage import FilterCoverage
from tracer.cluster_findings import ClusterFindings
from tracer.cluster_findings.cluster_context import ClusterContext, UnansweredDeparture, Undecided
from tracer.joining.packet_joiner import PacketJoiner
from tracer.joining.traced_nodes import TracedNodes
from tracer.kube.catalog import ClusterView
from tracer.model.finding import Finding

LOST = "lost_between_nodes"


@dataclass
class LostResult:
    """What was called lost.

    Attributes:
        packets: Packets that were made.
        lost: Those that the network lost.
        found: Those that were called lost for certain.
        likely: Those that were called lost perhaps.
        wrong: A line for each of them that came, and for each other finding that is certain.
        undecided: Number of packets of which nothing was said, by the reason.
    """

    packets: int = 0
    lost: int = 0
    found: int = 0
    likely: int = 0
    wrong: list[str] = field(default_factory=list)
    undecided: dict[str, int] = field(default_factory=dict)

    @property
    def line(self) -> str:
        """The result in one line."""
        return (
            f"packets={self.packets} lost={self.lost} found={self.found} perhaps={self.likely} wrong={len(self.wrong)}"
            f" undecided={sum(self.undecided.values())}"
        )


def made_cluster() -> ClusterView:
    """The nodes and pods of the made traffic as objects."""
    view, bodies = ClusterView(), list[dict[str, Any]]()
    for at, node in enumerate(NODES):
        address = {"type": "InternalIP", "address": f"192.168.56.{10 + at}"}
        bodies.append({"kind": "Node", "metadata": {"name": node}, "status": {"addresses": [address]}})
        for n in range(1, 4):
            addresses = [{"ip": f"10.244.{at}.{n}"}, {"ip": f"fd00:{at}::{n}"}]
            status = {"podIPs": addresses, "phase": "Running"}
            meta = {"namespace": "made", "name": f"pod-{at}-{n}"}
            bodies.append({"kind": "Pod", "metadata": meta, "spec": {"nodeName": node}, "status": status})
    view.store.load(bodies)
    return view


@contextmanager
def noted(result: LostResult, traffic: MadeTraffic) -> Iterator[None]:
    """A block in which each packet that is called lost is compared with the truth."""
    before = cluster_findings.DEPARTURES
    ((name, find),) = before

    def compared(departure: UnansweredDeparture, context: ClusterContext) -> Finding | Undecided | None:
        answer = find(departure, context)
        if isinstance(answer, Finding):
            result.found += answer.certain
            result.likely += not answer.certain
            target, packet, ends = departure.owner.node, departure.packet, departure.header.endpoints
            # A network may have sent a packet twice through this node: one that arrived before this one left is another one.
            if traffic.arrived.get((target, packet.identity, ends), 0) > departure.time - departure.error:
                result.wrong.append(f"{departure.node} -> {target}: {packet.protocol} {packet.tcp_flags} {ends}")
        return answer

    cluster_findings.DEPARTURES = ((name, compared),)
    try:
        yield
    finally:
        cluster_findings.DEPARTURES = before


def check(packets: int, seed: int = 1, rate: int = 4000) -> LostResult:
    """Looks for losses in the views of so many made packets."""
    traffic, joiner, result = MadeTraffic(seed, rate), PacketJoiner(), LostResult()
    view = made_cluster()
    nodes = TracedNodes(view.store)
    findings = ClusterFindings(ClusterContext(nodes, FilterCoverage({}, view)))
    for node in NODES:
        nodes.begin(node, EPOCH - SECOND)
    horizon = EPOCH
    with noted(result, traffic):
        for made in in_chunks(traffic.views(packets)):
            for each in made:
                if each.view is not None:
                    joiner.feed(each.view)
                    continue
                for losing in (joiner, nodes):
                    losing.note_loss(each.node, each.time - LOSSY_NS - MILLI, each.time + MILLI)
            horizon = made[-1].time - BEHIND_NS
            for node in NODES:
                nodes.advance(node, horizon)
            for joined in joiner.take(horizon):
                findings.look(joined)
            findings.take(horizon)
        for node in NODES:
            nodes.end(node, is_whole=True)
        for joined in joiner.close():
            findings.look(joined)
        findings.close()
    result.wrong += [f"{each.name}: {each.cause}" for each in findings.all if each.certain and each.name != LOST]
    result.packets, result.lost, result.undecided = traffic.counts.packets, traffic.counts.lost, dict(findings.undecided)
    return result


def main(words: list[str]) -> int:
    """Runs the check with these words, as PACKETS=1000."""
    options = dict(word.split("=", 1) for word in words)
    result = check(int(options.get("PACKETS", "100000")), int(options.get("SEED", "1")), int(options.get("RATE", "4000")))
    for why, count in sorted(result.undecided.items()):
        print(f"{count} undecided: {why}")
    for line in result.wrong[:20]:
        print(f"came, and was called lost: {line}")
    print(result.line)
    return 1 if result.wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
