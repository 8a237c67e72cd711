# SPDX-License-Identifier: Apache-2.0
"""Packets, hops, SYN verdicts and findings as attributes of OpenTelemetry.

Names of its semantic conventions where they have one; what else the JSON output says of a packet has the same name as there,
with the prefix `k8snet_trace.`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tracer.analysis.packet_decision import decision
from tracer.analysis.top.dimensions import service_of
from tracer.model.finding import Finding
from tracer.model.handshake import Cause
from tracer.model.kube import ObjectReference
from tracer.model.packet import Packet
from tracer.render.parts.json_packet import packet_object
from tracer.util.escape import escaped

PREFIX = "k8snet_trace."
OBJECT_NAMES = {"Service": "k8s.service.name", "Pod": "k8s.pod.name", "Node": "k8s.node.name"}
LEFT_OUT = frozenset({"possible", "acted", "time_ns", "what"})
"""Keys of a hop that are not attributes: long lists, and what the event itself has."""
MOST_TEXT, MOST_TEXT_OF_HOP = 1024, 256
"""Longest text of an attribute of a span or a log record, and of a hop, characters."""
Attributes = dict[str, str | int | bool]


def span_name(packet: Packet, cause: Cause | None) -> str:
    """A name of which there are few: "TCP SYN dropped", "UDP rejected", "TCP SYN no answer"."""
    end = packet.outcome.value if cause is None or cause.good else cause.name
    return escaped(" ".join(filter(None, (packet.protocol, packet.tcp_flags, end))))


def packet_attributes(packet: Packet, cause: Cause | None) -> Attributes:
    """The attributes of the span of a packet. cause: that of a SYN; None = it is no SYN, or not known."""
    ends = packet.endpoints
    made: dict[str, Any] = {
        "source.address": ends.src,
        "destination.address": ends.dst,
        "network.transport": packet.protocol.lower(),
        "network.type": packet.family.lower(),
        "verdict": packet.verdict,
        "outcome": packet.outcome.value,
        "complete": packet.complete,
        "packet": packet.number,
        "connection": packet.connection,
        "netns": packet.netns,
        "length": packet.length,
        "tcp_flags": packet.tcp_flags,
    }
    if ends.sport or ends.dport:
        made |= {"source.port": ends.sport, "destination.port": ends.dport}
    if packet.iface:
        made["network.interface.name"] = packet.iface
    if service := service_of(packet):
        made |= object_attributes(service.reference)
    decided = decision(packet)
    if decided:
        made |= {"decided_by": decided.by, "rule": decided.name, "evidence": decided.evidence.value}
        if decided.hit and decided.hit.rule:
            made["rule.text"] = decided.hit.rule.text
        owner = getattr(decided.hop, "owner", None)
        if owner:
            made |= {"owner": owner.text, "owner.kind": owner.kind, "owner.evidence": owner.evidence}
    if packet.drop:
        made |= {"drop.reason": packet.drop.reason, "drop.function": packet.drop.function}
    if cause:
        made |= {"cause": cause.name, "cause.text": cause.text, "cause.evidence": cause.evidence.value}
    return _plain(made)


def hop_events(packet: Packet) -> Iterator[tuple[str, int, Attributes]]:
    """Yields (name, ns after the packet's first hop, attributes) of each hop, in their order."""
    for hop in packet_object(packet)["hops"]:
        where = hop.get("hook", "")
        name = " ".join(filter(None, (hop["what"], where, hop.get("table", ""), hop.get("verdict", ""))))
        kept = {key: value for key, value in hop.items() if key not in LEFT_OUT}
        yield escaped(name), hop["time_ns"], _plain({"hop": hop["what"], **_flattened(kept)}, MOST_TEXT_OF_HOP)


def finding_attributes(finding: Finding) -> Attributes:
    """The attributes of the log record of a finding."""
    made: dict[str, Any] = {
        "finding": finding.name,
        "check": finding.check,
        "cure": finding.cure,
        "certain": finding.certain,
        "packets": finding.packets,
    }
    return _plain(made | object_attributes(finding.subject))


def object_attributes(reference: ObjectReference | None) -> dict[str, Any]:
    """The names of an object of Kubernetes."""
    if not reference:
        return {}
    return {OBJECT_NAMES[reference.kind]: reference.name, "k8s.namespace.name": reference.namespace}


def _flattened(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The leaves of a tree, by their dotted names."""
    made: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            made |= _flattened(value, f"{prefix}{key}.")
        else:
            made[prefix + key] = value
    return made


def _plain(given: Mapping[str, Any], most: int = MOST_TEXT) -> Attributes:
    """The attributes that are known, with the prefix of own ones, without control characters, and with texts cut to `most`."""
    made: Attributes = {}
    for key, value in given.items():
        if value is None or value == "":
            continue
        is_standard = key.startswith(("source.", "destination.", "network.", "k8s."))
        # JSON's numbers and truth values stay what they are; enumerations and names of namespaces become texts.
        made[key if is_standard else PREFIX + key] = value if isinstance(value, bool | int) else escaped(str(value))[:most]
    return made
