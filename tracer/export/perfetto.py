# SPDX-License-Identifier: Apache-2.0
"""The Perfetto export for https://ui.perfetto.dev and trace_processor: TrackEvent packets, written with Google's package.

A track for each namespace, below it one for each interface; a slice for each hop, with the rule and its owner as arguments;
a flow for each packet, which leads from slice to slice. A probe sees the end of a hook or table, not its beginning: a slice
begins at the packet's hop before it. The first hop of a packet, and those of its copies, have no such beginning and are
instants. Findings are instants on a track of their own, with the flows of their packets.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tracer import __version__
from tracer.export import CaptureInfo, Export, ExportOptions
from tracer.export._perfetto_tracks import TrackTable
from tracer.model.finding import Finding
from tracer.model.hop import (
    DropHop,
    HandshakeHop,
    Hop,
    IpvsRefusalHop,
    NatHop,
    RedirectHop,
    RouteHop,
    RuleHop,
    SocketHop,
    decision_of,
    is_from_conntrack,
    nat_of,
    owner_of,
    trace_of,
    verdict_of,
)
from tracer.model.packet import Packet
from tracer.model.rule import format_path
from tracer.model.summary import RunSummary
from tracer.util.endpoint_format import format_endpoint
from tracer.util.escape import escaped
from tracer.util.new_file import fresh
from tracer.util.optional import require_optional

DESCRIPTION = "a trace for ui.perfetto.dev: a slice a hook or table, a flow a packet"
FINDINGS, NO_INTERFACE = "findings", "no interface"
_SEQUENCE = 1

Arguments = dict[str, str | int]


class Perfetto(Export):
    """Writes the trace."""

    def __init__(self, target: Path, about: CaptureInfo, options: ExportOptions = ExportOptions()) -> None:  # noqa: B008
        self._messages: Any = require_optional("perfetto.protos.perfetto.trace.perfetto_trace_pb2", "perfetto")
        builder: Any = require_optional("perfetto.trace_builder.proto_builder", "perfetto")
        self._about = about
        self._file = open(fresh(target), "wb")  # noqa: SIM115  # closed by close()
        self._writer = builder.StreamingTraceProtoBuilder(self._file)
        self._tracks = TrackTable(self._write_track)
        self._offset: int | None = None

    def packet(self, packet: Packet) -> None:
        if not packet.hops:
            return
        if self._offset is None:
            self._write_clocks(packet.hops[0].time, packet.time)
        before: Hop | None = None
        iface = packet.iface or NO_INTERFACE
        own = [hop for hop in packet.hops if not hop.clone]
        for hop in packet.hops:
            iface = hop.in_iface or hop.out_iface or (iface if not before or before.netns == hop.netns else NO_INTERFACE)
            arguments = _arguments(packet, hop)
            if own and hop is own[-1]:
                arguments |= {"packet.verdict": packet.verdict, "packet.outcome": packet.outcome.value}
            begin = hop.time if hop.clone or before is None else min(before.time, hop.time)
            self._slice(packet, hop, iface, begin, arguments, bool(own) and hop is own[-1])
            if not hop.clone:
                before = hop

    def _slice(self, packet: Packet, hop: Hop, iface: str, begin: int, arguments: Arguments, last: bool) -> None:
        netns = hop.netns or "not known"
        track = self._tracks.free(netns, iface, begin, hop.time) if begin < hop.time else None
        kinds = self._messages.TrackEvent
        if track is None:
            event = self._event(hop.time, kinds.TYPE_INSTANT, self._tracks.first(netns, iface, hop.time))
        else:
            event = self._event(begin, kinds.TYPE_SLICE_BEGIN, track)
        event.track_event.name = escaped(_name(hop))
        event.track_event.categories.append(hop.kind.value)
        (event.track_event.terminating_flow_ids if last else event.track_event.flow_ids).append(packet.number)
        self._annotate(event, arguments)
        self._writer.write_packet(event)
        if track is not None:
            self._writer.write_packet(self._event(hop.time, kinds.TYPE_SLICE_END, track))

    def finding(self, finding: Finding) -> None:
        if self._offset is None:
            return
        time = finding.first - self._offset if finding.first else 0
        event = self._event(time, self._messages.TrackEvent.TYPE_INSTANT, self._tracks.namespace(FINDINGS))
        event.track_event.name = escaped(finding.name)
        event.track_event.flow_ids.extend(finding.numbers)
        arguments: Arguments = {
            "cause": finding.cause,
            "check": finding.check,
            "cure": finding.cure,
            "packets": finding.packets,
        }
        for at, proof in enumerate(finding.proofs):
            arguments[f"proof.{at}"] = f"{proof.what}: {proof.text} ({proof.evidence})"
        self._annotate(event, arguments | {"certain": "yes" if finding.certain else "no"})
        self._writer.write_packet(event)

    def close(self, summary: RunSummary) -> None:
        self._file.close()

    def _write_clocks(self, monotonic: int, wall: int) -> None:
        """The first packet: the clock of the hops, at the moment that is `wall` ns since the epoch. The UI shows wall time."""
        self._offset = wall - monotonic
        packet = self._packet()
        packet.sequence_flags = self._messages.TracePacket.SEQ_INCREMENTAL_STATE_CLEARED
        for clock, time in ((self._messages.BUILTIN_CLOCK_MONOTONIC, monotonic), (self._messages.BUILTIN_CLOCK_REALTIME, wall)):
            packet.clock_snapshot.clocks.add(clock_id=clock, timestamp=time)
        packet.clock_snapshot.primary_trace_clock = self._messages.BUILTIN_CLOCK_REALTIME
        self._writer.write_packet(packet)

    def _write_track(self, number: int, name: str, parent: int) -> None:
        packet = self._packet()
        track = packet.track_descriptor
        track.uuid, track.name = number, escaped(name)
        if parent:
            track.parent_uuid = parent
        else:
            track.child_ordering = self._messages.TrackDescriptor.LEXICOGRAPHIC
            track.description = escaped(f"{self._about.host}, Linux {self._about.kernel}; k8snet-trace {__version__}")
        self._writer.write_packet(packet)

    def _packet(self) -> Any:
        packet = self._writer.create_packet()
        packet.trusted_packet_sequence_id = _SEQUENCE
        return packet

    def _event(self, time: int, kind: int, track: int) -> Any:
        packet = self._packet()
        packet.timestamp, packet.timestamp_clock_id = max(0, time), self._messages.BUILTIN_CLOCK_MONOTONIC
        packet.track_event.type, packet.track_event.track_uuid = kind, track
        return packet

    @staticmethod
    def _annotate(event: Any, arguments: Arguments) -> None:
        for name, value in arguments.items():
            annotation = event.track_event.debug_annotations.add(name=name)
            if isinstance(value, int):
                annotation.int_value = value
            else:
                annotation.string_value = escaped(value)


def _name(hop: Hop) -> str:
    """The name of a slice: what was run, or what happened."""
    if nat := nat_of(hop):
        return nat.kind
    match hop:
        case RuleHop():
            return f"{hop.place} {verdict_of(hop)}".strip()
        case SocketHop():
            return f"socket {hop.socket.command}".strip()
        case HandshakeHop():
            answer = {True: "answered", False: "dropped", None: ""}[hop.handshake.accepted]
            return f"{hop.handshake.stage} {answer}".strip()
        case DropHop():
            return f"drop {hop.drop.reason or hop.drop.function}".strip()
        case IpvsRefusalHop():
            return f"IPVS {verdict_of(hop)}".strip()
        case _:
            return f"{hop.hook or hop.kind.value} {verdict_of(hop)}".strip()


def _arguments(packet: Packet, hop: Hop) -> Arguments:
    """The arguments of a slice. Those that do not apply are absent."""
    ends = packet.endpoints
    found: Arguments = {
        "packet": packet.number,
        "packet.ends": f"{packet.protocol} {format_endpoint(ends.src, ends.sport)} -> {format_endpoint(ends.dst, ends.dport)}",
        "packet.flags": packet.tcp_flags, "hook": hop.hook, "verdict": verdict_of(hop), "evidence": hop.evidence.value,
        "in": hop.in_iface, "out": hop.out_iface, "mark": hop.mark, "copy": "yes" if hop.clone else "",
    }  # fmt: skip
    if nat := nat_of(hop):
        for when, each in (("before", nat.before), ("after", nat.after)):
            found[f"nat.{when}"] = f"{format_endpoint(each.src, each.sport)} -> {format_endpoint(each.dst, each.dport)}"
    if decision := decision_of(hop):
        found |= {"chain path": format_path(decision.path), "rule": decision.rule.text if decision.rule else "policy"}
        found["hotdrop"] = decision.hotdrop
    if trace := trace_of(hop):
        found["undecided"] = trace.undecided
    if owner := owner_of(hop):
        found["owner"] = owner.text
    match hop:
        case SocketHop():
            found |= {"socket.state": hop.socket.state, "socket.pid": hop.socket.pid}
        case HandshakeHop():
            shake = hop.handshake
            found |= {"accept queue": f"{shake.accept_queue}/{shake.accept_limit}", "SYN queue": shake.syn_queue}
        case DropHop():
            found |= {"drop.reason": hop.drop.reason, "drop.function": hop.drop.function}
            if hop.drop.program:
                found["drop.program"] = hop.drop.program.text
        case NatHop() if hop.program:
            found["program"] = hop.program.text
        case RedirectHop():
            found["redirect"] = hop.redirect.text
        case RouteHop():
            found["route"] = hop.route
    if is_from_conntrack(hop):
        found["from conntrack"] = "yes"
    return {name: value for name, value in found.items() if value != "" and not (name in ("mark", "socket.pid") and not value)}


EXPORT = Perfetto
