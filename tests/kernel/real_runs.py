# SPDX-License-Identifier: Apache-2.0
"""Requests on a node with the real kube-proxy, traced and judged: whose each packet is said to be, and what is found wrong."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from scenes.traffic import Reply
from tests.kernel import audit_claims, real_cluster
from tests.kernel.audit_nodes import CLIENT, NODE, PODS, Plan
from tests.kernel.real_cluster import Ask
from tests.kernel.watching import Seen, Watch
from tests.support.nodes import owners
from tracer.audit import audit
from tracer.audit.state import NodeState
from tracer.findings import Findings
from tracer.findings.context import FindingContext
from tracer.handshakes.analyzer import HandshakeAnalyzer
from tracer.kube.attribution import attribute
from tracer.kube.catalog import ClusterView
from tracer.model.filter import Filter
from tracer.model.finding import Finding
from tracer.model.packet import Packet
from tracer.node.node import HostReader
from tracer.packets.outcome import BAD
from tracer.predict.query import PathQuery
from tracer.rules import inventory

FILTER = Filter(ports=real_cluster.PORTS)
TRIES = 3
_SPORTS = itertools.count(41000)


@dataclass
class Totals:
    """What a run came to. Each list has a sentence an entry."""

    requests: int = 0
    owners_wrong: list[str] = field(default_factory=list)
    outcomes_wrong: list[str] = field(default_factory=list)
    explained_wrong: list[str] = field(default_factory=list)
    false: list[str] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)

    @property
    def faults(self) -> list[str]:
        """All of it, a sentence each, in the order of the lists."""
        named = {"owner": self.owners_wrong, "outcome": self.outcomes_wrong, "explain": self.explained_wrong,
                 "false": self.false, "missed": self.missed}  # fmt: skip
        return [f"{name}: {text}" for name, each in named.items() for text in each]

    @property
    def text(self) -> str:
        return (
            f"requests={self.requests} owners_wrong={len(self.owners_wrong)} outcomes_wrong={len(self.outcomes_wrong)}"
            f" explained_wrong={len(self.explained_wrong)} missed={len(self.missed)} false={len(self.false)}"
        )


@dataclass
class Judge:
    """watch: the probes; None: requests are made and not traced. proc: like /proc, of this namespace. with_explain: each
    request is compared with what `explain` says, too. timeout: seconds that a request may take.
    """

    cluster: ClusterView
    watch: Watch | None
    proc: Path
    with_explain: bool
    timeout: float
    totals: Totals

    def healthy(self, where: str, asks: Iterable[Ask]) -> None:
        """Makes the requests on a node that has nothing wrong with it: each finding is a false one."""
        found = self.traced(where, list(asks)) + self.audited()
        self.totals.false += [f"{where}: {_of(f)}" for f in found]

    def audit(self, where: str) -> None:
        """A node without traffic that has nothing wrong with it."""
        self.totals.false += [f"{where}: {_of(f)}" for f in self.audited()]

    def broken(
        self, where: str, asks: Iterable[Ask], name: str, beside: tuple[str, ...] = (), certain: bool = True
    ) -> list[Finding]:
        """The same where one thing is wrong: the finding of this name must be told, and no other. Returns those of the name.

        beside: names of findings that may be told, too. certain: whether it must be told as certain.
        """
        found = self.traced(where, list(asks)) + self.audited()
        if not any(f.name == name and f.certain >= certain for f in found):
            self.totals.missed.append(f"{where}: {name} is not among {[_of(f) for f in found]}")
        self.totals.false += [f"{where}: {_of(f)}" for f in found if f.name not in (name, *beside)]
        return [f for f in found if f.name == name]

    def audited(self) -> list[Finding]:
        return audit(self.state())

    def state(self) -> NodeState:
        rules = inventory.read(True)
        return NodeState(FindingContext(self.cluster, HostReader(self.proc)), rules)

    def traced(self, where: str, asks: list[Ask]) -> list[Finding]:
        """Makes the requests, judges each, and returns what their packets show to be wrong."""
        for _ in range(TRIES):
            before = self.watch.lost if self.watch else 0
            with self.watch(FILTER, nft=True) if self.watch else nullcontext(Seen()) as seen:
                sports = [next(_SPORTS) for _ in asks]
                replies = [ask.send(sport, self.timeout) for ask, sport in zip(asks, sports, strict=True)]
            if not self.watch or self.watch.lost == before:
                break
        context, syns = FindingContext(self.cluster), HandshakeAnalyzer()
        findings = Findings(context)
        for packet in seen.packets:
            attribute(packet, self.cluster)
            findings.look(packet)
            syns.feed(packet)
        for verdict in syns.flush():
            findings.look_syn(verdict)
        for ask, sport, reply in zip(asks, sports, replies, strict=True):
            self._judge(f"{where}: {ask.text}", ask, reply, _opening(seen.packets, sport))
        if self.with_explain:
            self._explained(where, asks, replies)
        return findings.all

    def _judge(self, text: str, ask: Ask, reply: Reply, opening: list[Packet]) -> None:
        self.totals.requests += 1
        got = real_cluster.answer(reply)
        if got not in ask.wanted:
            self.totals.outcomes_wrong.append(f"{text}: got {got}, not {' or '.join(ask.wanted)}")
        if not self.watch:
            return
        if not opening:
            self.totals.outcomes_wrong.append(f"{text}: no packet of it was seen")
            return
        first = opening[0]
        whose = first.dst_owner.text if first.dst_owner else "nobody"
        named = set().union(*(owners(packet, real_cluster.LABELS) for packet in opening))
        # What IPVS has no real server for meets no rule of anybody.
        # Of a port that is both a Service's and a pod's, the rules are those of who answers; kube-proxy may have set the mark.
        label = real_cluster.HOSTED if reply.server == "pod-d" else ask.label
        may = {label, ask.label}
        if not any(name in whose for name in may) or not named <= may or (reply.server and label not in named):
            self.totals.owners_wrong.append(f"{text}: {whose}, rules of {sorted(named)}: {_way(opening)}")
        verdicts = [p.verdict for p in opening]
        if reply.server:
            right = any(f"in {reply.server}" in v for v in verdicts) or (ask.udp and first.outcome == "delivered")
        else:
            right = any(p.outcome in BAD or p.outcome == "refused" for p in opening)
        if not right:
            self.totals.outcomes_wrong.append(f"{text}: got {got}, told was {verdicts}")

    def _explained(self, where: str, asks: list[Ask], replies: list[Reply]) -> None:
        state, plan = self.state(), Plan(0, "", "", ())
        for ask, reply in zip(asks, replies, strict=True):
            if ask.udp:
                continue
            source = NODE if ask.ns is None else PODS.get(ask.ns, CLIENT)
            predicted_paths = state.predictor.predict(PathQuery(source, 0, ask.address, ask.port))
            told = [audit_claims.expected(predicted, plan) for predicted in predicted_paths]
            failed = {"refused": audit_claims.REFUSED, "timeout": audit_claims.LOST}
            got = (reply.server or failed.get(reply.outcome, reply.outcome), reply.seen_source)
            may = set().union(*(t for t in told if t))
            if None not in told and got not in may and (got[0], audit_claims.ANY) not in may:
                self.totals.explained_wrong.append(f"{where}: {ask.text}: got {got}, explained was {sorted(may)}")


def _opening(packets: Iterable[Packet], sport: int) -> list[Packet]:
    """The packets that open the connection from this port: SYNs, or what came first of UDP."""
    found = [p for p in packets if p.endpoints.sport == sport or (p.flow and p.flow.orig.sport == sport)]
    return [p for p in found if p.tcp_flags == "SYN"] or [p for p in found if p.endpoints.sport == sport][:1]


def _way(packets: Iterable[Packet]) -> list[str]:
    return [f"{h.hook} {h.table} {h.verdict}: {h.owner.text}" for p in packets for h in p.hops if h.owner]


def _of(finding: Finding) -> str:
    return f"{finding.name}{'' if finding.certain else ' (perhaps)'}: {finding.cause}"
