# SPDX-License-Identifier: Apache-2.0
"""Builds one state of an incident, or a variation, traces and explains it as the tracer does, and collects the findings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import incidents
from incidents import varied
from incidents.objects import Object
from incidents.situations import Situation
from incidents.variations import Variation
from scenes.rules import Backend
from tests.kernel.watching import Watch
from tests.support import hop_fields
from tracer.audit import audit
from tracer.audit.state import NodeState
from tracer.findings import Findings
from tracer.findings.context import FindingContext
from tracer.handshakes.analyzer import HandshakeAnalyzer
from tracer.kube import node_name
from tracer.kube.attribution import attribute
from tracer.kube.catalog import ClusterView
from tracer.kube.cni_cache import CniCache
from tracer.kube.store import ObjectStore
from tracer.model.filter import Filter
from tracer.model.finding import Finding
from tracer.model.hop import owner_of, verdict_of
from tracer.model.packet import Packet
from tracer.node import addresses
from tracer.node.nfnetlink import nft_loaded
from tracer.rules import inventory


@dataclass
class Result:
    """The result of one state.

    Attributes:
        finding: Name of the expected finding.
        title: What was built.
        expected: Expected number of findings.
        words: Words that must occur in the causes, each in at least one.
        findings: All findings.
        packets: All packets.
        requests: Requests of the client with their results.
    """

    finding: str
    title: str
    expected: int
    words: tuple[str, ...] = ()
    findings: list[Finding] = field(default_factory=list)
    packets: list[Packet] = field(default_factory=list)
    requests: list[tuple[str, str]] = field(default_factory=list)

    @property
    def right(self) -> int:
        found = [f.cause for f in self.findings if self._is_expected(f)]
        missing = [word for word in self.words if not any(word in cause for cause in found)]
        return max(0, len(found) - len(missing))

    @property
    def false(self) -> int:
        """Number of findings that are not expected, also of those that are not certain."""
        others = sum(not self._is_expected(f) for f in self.findings)
        return others + max(0, self.right - self.expected)

    def _is_expected(self, found: Finding) -> bool:
        return found.name == self.finding and found.certain

    @property
    def text(self) -> str:
        lines = [f"{self.title}: {self.right} of {self.expected} found, {self.false} false"]
        lines += [f"    {f.name}{'' if f.certain else ' (perhaps)'}: {f.cause}" for f in self.findings]
        if (self.right, self.false) != (self.expected, 0):
            lines += [f"    request: {request}: {answer}" for request, answer in self.requests]
            lines += [f"    {line}" for packet in self.packets for line in _packet_lines(packet)]
        return "\n".join(lines)


def _packet_lines(packet: Packet) -> list[str]:
    """A packet and its decisive hops, to see why nothing was found."""
    hops = [h for h in packet.hops if h.is_decisive or (hop_fields.undecided(h))]
    rows = [
        (
            h.hook,
            hop_fields.table(h),
            verdict_of(h),
            hop_fields.undecided(h),
            owner_of(h) and hop_fields.owner(h).text,
        )
        for h in hops
    ]
    return [f"{packet.tcp_flags} {packet.endpoints.dst}:{packet.endpoints.dport} {packet.verdict}", *map(str, rows)]


def cluster_view(objects: list[Object]) -> ClusterView:
    """The tracer's view of these objects, as the API lists them, on this node."""
    store = ObjectStore()
    for kind in sorted({str(each["kind"]) for each in objects}):
        store.replace(kind, [each for each in objects if each["kind"] == kind])
    local = addresses.local_addresses()
    store.node = node_name.name_of_node(store, local)
    return ClusterView(store, CniCache(), local)


def run(watch: Watch, incident: incidents.Incident, state: str, backend: Backend = "legacy") -> Result:
    """Builds the state, makes its traffic while the tracer runs, and leaves the state up."""
    result = Result(incident.finding, f"{incident.number} {state} ({backend})", incident.states[state])
    objects = incident.up(state, backend)
    return _trace(watch, result, objects, incident.ports, backend, lambda: incident.traffic(state))


def vary(watch: Watch, variation: Variation) -> Result:
    """The same for a variation of an incident."""
    words = tuple(s.label for s in variation.services) if variation.incident in (1, 4, 5) and variation.expected else ()
    result = Result(variation.finding, variation.text, variation.expected, words)
    objects = varied.up(variation)
    return _trace(watch, result, objects, variation.ports, variation.backend, lambda: varied.traffic(variation))


def situate(watch: Watch, situation: Situation) -> tuple[Result, Result]:
    """The findings of its packets, and the findings of the audit."""
    objects = situation.up()
    packets = Result(situation.packets, situation.text, int(bool(situation.packets)))
    _trace(watch, packets, objects, situation.ports, situation.backend, situation.traffic, nft=True)
    packets.findings = [f for f in packets.findings if f.name not in situation.allowed]
    findings = audit(NodeState(FindingContext(cluster_view(objects)), inventory.read(nft_loaded())))
    audited = Result(situation.audit, f"{situation.text}, audited", int(bool(situation.audit)), requests=packets.requests)
    audited.findings = [f for f in findings if f.certain or f.name not in situation.perhaps]
    if situation.by_answer:
        winner = "pod" if any(situation.taker in answer for _, answer in packets.requests) else "Service"
        packets.expected = int(winner == "pod")
        # If the audit names a winner, it must be the one that answered.
        audited.words = (f"the {winner} gets every request",) if any("gets every request" in f.cause for f in findings) else ()
    return packets, audited


def _trace(
    watch: Watch,
    result: Result,
    objects: list[Object],
    ports: tuple[int, ...],
    backend: str,
    traffic: Callable[[], incidents.Requests],
    nft: bool = False,
) -> Result:
    view = cluster_view(objects)
    with watch(Filter(ports=ports), nft=nft or backend in ("nft", "native"), is_wall_time=True) as seen:
        result.requests = traffic()
    findings, syns = Findings(FindingContext(view)), HandshakeAnalyzer()
    for packet in (attribute(p, view) for p in seen.packets):
        findings.look(packet)
        syns.feed(packet)
    for verdict in syns.flush():
        findings.look_syn(verdict)
    result.findings, result.packets = findings.all, seen.packets
    return result
