# SPDX-License-Identifier: Apache-2.0
"""Packets that did not reach their destination, by the rule that decided, its owner, and the reason."""

from __future__ import annotations

from typing import NamedTuple

from tracer.analysis.top.dimensions import DIMENSIONS
from tracer.metrics.family import CounterFamily, MetricDescription, MetricKind
from tracer.metrics.label_value import NONE, UNKNOWN, label_value
from tracer.metrics.metric_sources import MetricSources
from tracer.model.hop import owner_of
from tracer.model.kube import Owner
from tracer.model.packet import Packet
from tracer.packets.path_memo import PathMemo
from tracer.render.parts.deciding_hop import deciding_hop, deciding_program, deciding_rule, program_owner


class _DropLabels(NamedTuple):
    """The values of the labels, in their order."""

    rule: str
    owner_kind: str
    owner_namespace: str
    owner_name: str
    reason: str


class DroppedPackets(CounterFamily):
    """Counts the packets. What packets on a shared path have in common is computed once."""

    DESCRIPTION = MetricDescription(
        MetricKind.COUNTER,
        "Packets that were dropped, rejected or refused, by the rule that decided, its owner and the reason.",
        labels=_DropLabels._fields,
    )

    def __init__(self, sources: MetricSources) -> None:
        super().__init__(sources)
        self._labels = PathMemo(_labels)

    def packet(self, packet: Packet) -> None:
        self._add(self._labels.of(packet))


def _labels(packet: Packet) -> _DropLabels:
    rule, owner = _rule(packet)
    names = ("", "", "") if owner is None else (owner.kind, owner.namespace, owner.name or owner.program)
    kind, namespace, name = map(label_value, names)
    return _DropLabels(rule, kind, namespace, name, label_value(DIMENSIONS["reason"].of_packet(packet).text))


def _rule(packet: Packet) -> tuple[str, Owner | None]:
    """The rule, "filter/KUBE-FIREWALL 2" or "filter/FORWARD policy (derived)", or the program, and its owner; None = none."""
    hop = deciding_hop(packet)
    if hop is None and (found := deciding_program(packet)):
        program = found.program
        return (label_value(f"{found.point} {program.name}") if program else UNKNOWN), program_owner(found)
    if hop is None:
        return (NONE if packet.complete else UNKNOWN), None
    rule = deciding_rule(hop)
    return (label_value(f"{rule.table}/{rule.place}") if rule else UNKNOWN), owner_of(hop)


METRIC = DroppedPackets
