# SPDX-License-Identifier: Apache-2.0
"""The JSON line of a packet on a shared path, filled in from the line of an earlier packet on that path."""

from __future__ import annotations

from tracer.events.decision_detail import TSVAL
from tracer.model.hop import DecisionDetail
from tracer.model.packet import Flow, Packet
from tracer.packets.path_memo import PathMemo
from tracer.packets.shared_packet import SharedPacket
from tracer.packets.shared_path import EndpointsPattern, PathHops, Ports, shared_hops
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
        return template.of_packet(packet, hops) if template else packet_line(packet)

    def shared_line(self, packet: SharedPacket) -> str:
        """The JSON line of a packet on a shared path."""
        template = self._templates.of(packet)
        return template.of_shared(packet) if template else packet_line(packet.packet())


def packet_line(packet: Packet) -> str:
    """The JSON line of a packet."""
    return json_line({"type": "packet", **packet_object(packet)})


def _template(packet: Packet) -> _PacketTemplate | None:
    """The template of the packet's path; None = something else in its line depends on a value."""
    hops = shared_hops(packet)
    assert hops
    template = _PacketTemplate(packet, hops)
    return template if template.of_packet(packet, hops) == packet_line(packet) else None


_PARAMETERS = (
    "number", "time", "length", "seq", "ident", "ports", "times", "began", "sockets", "details", "tsval",
)  # fmt: skip
"""The values of a packet in a template; `began` is the time of its first hop, `tsval` the name of that fact."""


class _PacketTemplate:
    """A line with the places of its values, made from a packet with a mark in place of each value."""

    def __init__(self, packet: Packet, hops: PathHops) -> None:
        places: dict[int, str] = {}

        def marked(value: str) -> int:
            """A new mark. value: the expression for what replaces it."""
            places[mark := new_mark()] = value
            return mark

        number, time, length, seq, ident = map(marked, _PARAMETERS[:5])
        times = [marked(f"times[{pattern.time}] - began") for pattern in hops.path.hops]
        sockets = tuple([marked(f"sockets[{at}]") if inode else 0 for at, inode in enumerate(hops.sockets)])
        details = tuple(_with_tsval(detail, marked(f"details[{at}].facts[tsval]")) for at, detail in enumerate(hops.details))
        chosen: Ports = (marked("ports[0]"), marked("ports[1]"))
        own = evolve(
            packet,
            number=number,
            length=length,
            seq=seq,
            ident=ident,
            endpoints=EndpointsPattern.of(packet.endpoints, hops.ports).fill(chosen),
            flow=packet.flow and _with_ports(packet.flow, hops.ports, chosen),
            hops=PathHops(hops.path, hops.times, chosen, sockets, details),
        )
        line = packet_object(own)
        line["time"] = time
        for hop, mark in zip(line["hops"], times, strict=True):
            hop["time_ns"] = mark
        self._template = LineTemplate(json_line({"type": "packet", **line}), places, _PARAMETERS)
        self._began = hops.path.hops[0].time

    def of_packet(self, packet: Packet, hops: PathHops) -> str:
        """The line of a packet with these hops."""
        return self._template.fill(
            packet.number, f'"{rfc3339(packet.time)}"', packet.length, packet.seq, packet.ident, hops.ports, hops.times,
            hops.times[self._began], hops.sockets, hops.details, TSVAL,
        )  # fmt: skip

    def of_shared(self, packet: SharedPacket) -> str:
        """The line of a packet that was not made whole."""
        times = packet.times
        return self._template.fill(
            packet.number, f'"{rfc3339(packet.time)}"', packet.length, packet.seq, packet.ident, packet.way.ports, times,
            times[self._began], packet.sockets, packet.details, TSVAL,
        )  # fmt: skip


def _with_tsval(detail: DecisionDetail, mark: int) -> DecisionDetail:
    return evolve(detail, facts={**detail.facts, TSVAL: mark}) if TSVAL in detail.facts else detail


def _with_ports(flow: Flow, before: Ports, ports: Ports) -> Flow:
    orig, reply = (EndpointsPattern.of(ends, before).fill(ports) for ends in (flow.orig, flow.reply))
    return evolve(flow, orig=orig, reply=reply)
