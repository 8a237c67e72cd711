# SPDX-License-Identifier: Apache-2.0
"""Traces requests on a node with the real kube-proxy, and judges the reported owners, outcomes and findings."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from scenes.traffic import Reply
from tests.kernel import audit_claims, real_cluster
from tests.kernel.audit_nodes import CLIENT, NODE, PODS, Plan
from tests.kernel.real_cluster import Request
from tests.kernel.watching import Seen, Watch
from tests.support import hop_fields
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
from tracer.model.hop import owner_of, verdict_of
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
    """The totals of a run. Each list has one sentence per error."""

    requests: int = 0
    owners_wrong: list[str] = field(default_factory=list)
    outcomes_wrong: list[str] = field(default_factory=list)
    explained_wrong: list[str] = field(default_factory=list)
    false: list[str] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)

    @property
    def faults(self) -> list[str]:
        """All errors, one sentence each, in the order of the lists."""
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
    """Makes requests and judges what the tracer reports about them.

    Attributes:
        cluster: Objects of the API.
        watch: The probes; None: requests are made but not traced.
        proc: A directory like /proc, of this namespace.
        with_explain: Also compare each request with the output of `explain`.
        timeout: Limit of a request, seconds.
        totals: Gets the results.
    """

    cluster: ClusterView
    watch: Watch | None
    proc: Path
    with_explain: bool
    timeout: float
    totals: Totals

    def healthy(self, where: str, requests: Iterable[Request]) -> None:
        """Makes the requests on a healthy node: each finding is false."""
        found = self.traced(where, list(requests)) + self.audited()
        self.totals.false += [f"{where}: {_finding_text(f)}" for f in found]

    def audit(self, where: str) -> None:
        """Audits a healthy node without traffic: each finding is false."""
        self.totals.false += [f"{where}: {_finding_text(f)}" for f in self.audited()]

    def broken(
        self, where: str, requests: Iterable[Request], name: str, also_allowed: tuple[str, ...] = (), certain: bool = True
    ) -> list[Finding]:
        """Makes the requests on a node with one fault: the finding of this name must be reported, and no other. Returns it.

        also_allowed: names of further findings that may be reported. certain: whether the finding must be certain.
        """
        found = self.traced(where, list(requests)) + self.audited()
        if not any(f.name == name and f.certain >= certain for f in found):
            self.totals.missed.append(f"{where}: {name} is not among {[_finding_text(f) for f in found]}")
        self.totals.false += [f"{where}: {_finding_text(f)}" for f in found if f.name not in (name, *also_allowed)]
        return [f for f in found if f.name == name]

    def audited(self) -> list[Finding]:
        return audit(self.state())

    def state(self) -> NodeState:
        rules = inventory.read(True)
        return NodeState(FindingContext(self.cluster, HostReader(self.proc)), rules)

    def traced(self, where: str, requests: list[Request]) -> list[Finding]:
        """Makes the requests, judges each, and returns the findings of their packets."""
        for _ in range(TRIES):
            before = self.watch.lost if self.watch else 0
            with self.watch(FILTER, nft=True) if self.watch else nullcontext(Seen()) as seen:
                sports = [next(_SPORTS) for _ in requests]
                replies = [request.send(sport, self.timeout) for request, sport in zip(requests, sports, strict=True)]
            if not self.watch or self.watch.lost == before:
                break
        context, syns = FindingContext(self.cluster), HandshakeAnalyzer()
        findings = Findings(context)
        for packet in (attribute(p, self.cluster) for p in seen.packets):
            findings.look(packet)
            syns.feed(packet)
        for verdict in syns.flush():
            findings.look_syn(verdict)
        for request, sport, reply in zip(requests, sports, replies, strict=True):
            self._judge(f"{where}: {request.text}", request, reply, _opening(seen.packets, sport))
        if self.with_explain:
            self._compare_with_explain(where, requests, replies)
        return findings.all

    def _judge(self, text: str, request: Request, reply: Reply, opening: list[Packet]) -> None:
        self.totals.requests += 1
        result = real_cluster.answer(reply)
        if result not in request.expected:
            self.totals.outcomes_wrong.append(f"{text}: got {result}, not {' or '.join(request.expected)}")
        if not self.watch:
            return
        if not opening:
            self.totals.outcomes_wrong.append(f"{text}: no packet of it was seen")
            return
        first = opening[0]
        owner = first.dst_owner.text if first.dst_owner else "no owner"
        named = set().union(*(owners(packet, real_cluster.LABELS) for packet in opening))
        # A packet to a virtual server of IPVS without real servers meets no rule.
        # For a port of both a Service and a pod, the rules are those of the one that answers; kube-proxy may have set the mark.
        label = real_cluster.HOSTED if reply.server == "pod-d" else request.label
        allowed = {label, request.label}
        if not any(name in owner for name in allowed) or not named <= allowed or (reply.server and label not in named):
            self.totals.owners_wrong.append(f"{text}: {owner}, rules of {sorted(named)}: {_owner_lines(opening)}")
        verdicts = [p.verdict for p in opening]
        if reply.server:
            right = any(f"in {reply.server}" in v for v in verdicts) or (request.udp and first.outcome == "delivered")
        else:
            right = any(p.outcome in BAD or p.outcome == "refused" for p in opening)
        if not right:
            self.totals.outcomes_wrong.append(f"{text}: got {result}, reported was {verdicts}")

    def _compare_with_explain(self, where: str, requests: list[Request], replies: list[Reply]) -> None:
        state, plan = self.state(), Plan(0, "", "", ())
        for request, reply in zip(requests, replies, strict=True):
            if request.udp:
                continue
            source = NODE if request.ns is None else PODS.get(request.ns, CLIENT)
            predicted_paths = state.predictor.predict(PathQuery(source, 0, request.address, request.port))
            expected = [audit_claims.expected(predicted, plan) for predicted in predicted_paths]
            failed = {"refused": audit_claims.REFUSED, "timeout": audit_claims.LOST}
            result = (reply.server or failed.get(reply.outcome, reply.outcome), reply.seen_source)
            allowed = set().union(*(t for t in expected if t))
            if None not in expected and result not in allowed and (result[0], audit_claims.ANY) not in allowed:
                self.totals.explained_wrong.append(f"{where}: {request.text}: got {result}, explained was {sorted(allowed)}")


def _opening(packets: Iterable[Packet], sport: int) -> list[Packet]:
    """The packets that open the connection from this port: SYNs, or the first UDP packet."""
    found = [p for p in packets if p.endpoints.sport == sport or (p.flow and p.flow.orig.sport == sport)]
    return [p for p in found if p.tcp_flags == "SYN"] or [p for p in found if p.endpoints.sport == sport][:1]


def _owner_lines(packets: Iterable[Packet]) -> list[str]:
    return [
        f"{h.hook} {hop_fields.table(h)} {verdict_of(h)}: {hop_fields.owner(h).text}"
        for p in packets
        for h in p.hops
        if owner_of(h)
    ]


def _finding_text(finding: Finding) -> str:
    return f"{finding.name}{'' if finding.certain else ' (perhaps)'}: {finding.cause}"
