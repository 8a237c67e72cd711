# SPDX-License-Identifier: Apache-2.0
"""The JSON line of a packet on a shared path, filled in from the line of an earlier packet on that path."""

from __future__ import annotations

from tracer.events.decision_detail import TSVAL
from tracer.model.hop import DecisionDetail
from tracer.model.packet import Flow, Packet
from tracer.packets.shared_path import EndpointsPattern, PathHops, PathMemo, Ports, shared_hops
from tracer.render.parts.json_packet import packet_object, rfc3339
from tracer.render.parts.line_template import LineTemplate, new_mark
from tracer.util.escape import json_line
from tracer.util.frozen import evolve


class JsonTemplates:
    """The lines of packets on shared paths."""

    def __init__(self) -> None:
        self._templates = PathMemo(_template)

    def line(self, packet: Packet, hops: PathHops) -> str:
        """The JSON line of a packet with these hops."""
        template = None if packet.unexplained else self._templates.of(packet)
        return template.fill(packet, hops) if template else packet_line(packet)


def packet_line(packet: Packet) -> str:
    """The JSON line of a packet."""
    return json_line({"type": "packet", **packet_object(packet)})


def _template(packet: Packet) -> _PacketTemplate | None:
    """The template of the packet's path; None = something else in its line depends on a value."""
    hops = shared_hops(packet)
    assert hops
    template = _PacketTemplate(packet, hops)
    return template if template.fill(packet, hops) == packet_line(packet) else None


class _PacketTemplate:
    """A line with the places of its values, made from a packet with a mark in place of each value."""

    def __init__(self, packet: Packet, hops: PathHops) -> None:
        marks = [new_mark() for _ in _values(packet, hops)]
        number, time, length, seq, ident, *ports = marks[:7]
        rest = iter(marks[7:])
        times = [next(rest) for _ in hops.path.hops]
        sockets = tuple([mark if inode else 0 for inode, mark in zip(hops.sockets, rest, strict=False)])
        details = tuple(_with_tsval(detail, next(rest)) for detail in hops.details)
        chosen: Ports = (ports[0], ports[1])
        marked = evolve(
            packet,
            number=number,
            length=length,
            seq=seq,
            ident=ident,
            endpoints=EndpointsPattern.of(packet.endpoints, hops.ports).fill(chosen),
            flow=packet.flow and _with_ports(packet.flow, hops.ports, chosen),
            hops=PathHops(hops.path, hops.times, chosen, sockets, details),
        )
        line = packet_object(marked)
        line["time"] = time
        for hop, mark in zip(line["hops"], times, strict=True):
            hop["time_ns"] = mark
        self._template = LineTemplate(json_line({"type": "packet", **line}), marks)

    def fill(self, packet: Packet, hops: PathHops) -> str:
        """The line of a packet."""
        return self._template.fill(_values(packet, hops))


def _values(packet: Packet, hops: PathHops) -> list[object]:
    """The values of a packet, in the order of the marks of a template."""
    times = hops.times
    began = times[hops.path.hops[0].time]
    head: list[object] = [packet.number, f'"{rfc3339(packet.time)}"', packet.length, packet.seq, packet.ident]
    head += hops.ports
    head += [times[pattern.time] - began for pattern in hops.path.hops]
    return [*head, *hops.sockets, *(detail.facts.get(TSVAL) for detail in hops.details)]


def _with_tsval(detail: DecisionDetail, mark: int) -> DecisionDetail:
    return evolve(detail, facts={**detail.facts, TSVAL: mark}) if TSVAL in detail.facts else detail


def _with_ports(flow: Flow, before: Ports, ports: Ports) -> Flow:
    orig, reply = (EndpointsPattern.of(ends, before).fill(ports) for ends in (flow.orig, flow.reply))
    return evolve(flow, orig=orig, reply=reply)
