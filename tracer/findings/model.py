# SPDX-License-Identifier: Apache-2.0
"""The nouns of findings: what is wrong, and each thing that shows it, with how it is known."""

from __future__ import annotations

from dataclasses import dataclass

from tracer.model import Hop, Ipvs, Packet
from tracer.place import place
from tracer.rules.model import Rule, Visit, path


@dataclass(frozen=True)
class Proof:
    """One piece of evidence.

    what: "packet", "rule", "server", "object", "process", "setting", "counter", "address", "route". evidence: how it is known:
    "observed" or "derived" of what a packet met, else who told it: "Kubernetes API", "/proc/net/tcp", "CNI result cache".
    """

    what: str
    text: str
    evidence: str


@dataclass(frozen=True)
class Finding:
    """Something is wrong, for one cause.

    name: of the finding's file. key: tells causes apart: a second packet with the same key shows the same cause. cause: one
    sentence. check: what to look at, cure: what would mend it. certain: nothing in it is a guess; where that is False the
    cause is only the likely one, and cause says so. packets: how many show it, 0: it was found without traffic; first, last: ns
    since the epoch, of those packets; numbers: `number` of the first ones.
    """

    name: str
    key: tuple[object, ...]
    cause: str
    proofs: tuple[Proof, ...]
    check: str
    cure: str
    certain: bool = True
    packets: int = 1
    first: int = 0
    last: int = 0
    numbers: tuple[int, ...] = ()


def packet_proof(packet: Packet) -> Proof:
    """A packet, where it was sent to and how it ended."""
    ends = packet.endpoints
    return Proof("packet", f"{ends.src} -> {place(ends.dst, ends.dport)}: {packet.verdict}", "observed")


def stands(rule: Rule, source: str, whose: str = "") -> Proof:
    """A rule that is there, whether or not a packet met it. source: who told it."""
    text = f"{rule.chain} {rule.number}: {rule.text}"
    return Proof("rule", text + (f" ({whose})" if whose else ""), source)


def decision_proof(hop: Hop, whose: str = "") -> Proof:
    """What decided at a hop: a rule, or a virtual server of IPVS. The hop has a walk with a decision, or ipvs."""
    if hop.ipvs:
        return Proof("server", _server(hop.ipvs) + (f" ({whose})" if whose else ""), hop.evidence.value)
    assert hop.walk and hop.walk.decision
    return rule_proof(hop.walk.decision, whose)


def _server(told: Ipvs) -> str:
    to = place(told.real, told.real_port) if told.real else "has no real server"
    return f"IPVS virtual server {told.protocol} {place(told.virtual, told.virtual_port)}{' -> ' if told.real else ' '}{to}"


def rule_proof(visit: Visit, whose: str = "") -> Proof:
    """A rule that acted, with the way to it and whose it is."""
    text = visit.rule.text if visit.rule else f"policy {visit.verdict}"
    element = f" [element {visit.element}]" if visit.element else ""
    hotdrop = f" [{visit.hotdrop}]" if visit.hotdrop else ""
    said = f"{path(visit.path)}: {text}{element}{hotdrop}" + (f" ({whose})" if whose else "")
    return Proof("rule", said, visit.evidence.value)
