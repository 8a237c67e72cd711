# SPDX-License-Identifier: Apache-2.0
"""Converts a packet into a timeline entry: its sender, its changes, its end, as short texts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

from tracer.model.evidence import Evidence
from tracer.model.hop import (
    DecidingHop,
    DecisionDetail,
    DetailHop,
    DropHop,
    HandshakeHop,
    HookHop,
    Hop,
    IpvsNatHop,
    IpvsRefusalHop,
    Nat,
    NatHop,
    RedirectHop,
    RewriteHop,
    RuleHop,
    SocketHop,
    is_from_conntrack,
)
from tracer.model.namespace_name import in_netns
from tracer.model.netfilter import REFUSALS, Hook
from tracer.model.packet import Packet
from tracer.model.timeline import PathStep, TimelineEntry
from tracer.packets import flooded_copies, icmp, purged, queue_details
from tracer.packets.outcome import BAD, is_benign
from tracer.packets.shared_packet import hop_time
from tracer.util.endpoint_format import format_endpoint


def make_entry(packet: Packet, direction: str, remark: str = "") -> TimelineEntry:
    """The timeline entry of a packet. direction, remark: as in TimelineEntry."""
    text = f"{packet.tcp_flags or icmp.error_name(packet) or packet.protocol}, {packet.length} B"
    if "RST" in packet.tcp_flags or direction == "!":
        text += f", {format_sender(packet)}"
    end = _format_end(packet)
    stages = tuple(_stages(packet))
    began = hop_time(packet, 0)
    fingerprint, bad = _fingerprint(packet, direction), packet.outcome in BAD
    return TimelineEntry(began, "packet", text, direction, end, remark, stages, bad, packet.number, packet.netns, fingerprint)


def _fingerprint(packet: Packet, direction: str) -> int:
    """Hash of the properties that no address translation and no tunnel changes."""
    return hash((direction, packet.seq, packet.ack, packet.tcp_flags, packet.length, packet.protocol))


def continues(entry: TimelineEntry, packet: Packet, direction: str) -> bool:
    """Whether a packet is the packet of this entry, seen again: later, or in another buffer in a new namespace, after a tunnel.

    A retransmission does not count: it begins in the namespace where the first transmission began.
    """
    if entry.same != _fingerprint(packet, direction) or entry.kind != "packet" or entry.bad:
        return False
    is_elsewhere = packet.netns != entry.netns and all(stage.netns != packet.netns for stage in entry.stages)
    return bool(packet.continues) or is_elsewhere


def extend(entry: TimelineEntry, packet: Packet) -> TimelineEntry:
    """The entry, extended by the further path of its packet."""
    first = packet.hops[0]
    by = f", by {first.in_iface}" if first.in_iface else ""
    delay = first.time - entry.time
    previous = entry.stages[-1].netns if entry.stages else entry.netns
    text = f"in {packet.netns}{by}, recognised by its header"
    arrival = [PathStep(delay, packet.netns, text)] if packet.netns != previous else []
    later_stages = (replace(stage, time=stage.time + delay) for stage in _stages(packet))
    return replace(entry, stages=(*entry.stages, *arrival, *later_stages), end=_format_end(packet), bad=packet.outcome in BAD)


def _format_end(packet: Packet) -> str:
    return packet.verdict + ("" if packet.complete else " (incomplete)")


def format_sender(packet: Packet) -> str:
    """The sender of a packet, from the place where it was first seen: a namespace of this node, or an interface."""
    first = packet.hops[0]
    if first.hook is Hook.OUTPUT or not first.in_iface:
        return f"sent by {packet.netns}"
    return f"came in by {first.in_iface}{in_netns(packet.netns)}"


def _stages(packet: Packet) -> Iterator[PathStep]:
    began = hop_time(packet, 0)
    namespaces = {False: packet.netns, True: packet.netns}  # of the packet, of its copies
    is_decided, foreign_copies = False, [h for h in packet.hops if flooded_copies.is_refused_copy(h)]
    for hop in packet.hops:
        if flooded_copies.is_refused_copy(hop):
            if hop is foreign_copies[0]:
                copies = f"{len(foreign_copies)} {'copies' if len(foreign_copies) > 1 else 'copy'}"
                text = f"{copies} dropped in other namespaces (OTHERHOST)"
                yield PathStep(hop.time - began, namespaces[False], text)
            continue
        if is_decided and _repeats_decision(hop):
            continue
        if hop.clone and isinstance(hop, DropHop) and (is_benign(hop.drop) or purged.has_unknown_receiver(hop.drop)):
            continue
        is_decided = is_decided or (isinstance(hop, RuleHop) and hop.verdict in REFUSALS)
        copy = " (copy)" * hop.clone
        if hop.netns and hop.netns != namespaces[hop.clone]:
            namespaces[hop.clone] = hop.netns
            yield PathStep(hop.time - began, hop.netns, f"in {hop.netns}{f', by {hop.in_iface}' if hop.in_iface else ''}{copy}")
        text = _format_hop(hop)
        if text:
            yield PathStep(hop.time - began, namespaces[hop.clone], text + copy)


def _repeats_decision(hop: Hop) -> bool:
    """Whether a hop only repeats the table's decision: the hook drops the packet, or the packet is freed."""
    return isinstance(hop, HookHop) or (isinstance(hop, DropHop) and hop.drop.function == "nf_hook_slow")


def _format_hop(hop: Hop) -> str:
    """One line for a hop; "" if the hop only let the packet pass."""
    match hop:
        case RewriteHop():
            derived = " (derived)" if hop.evidence is Evidence.DERIVED else ""
            owner = "" if is_from_conntrack(hop) else _format_owner(hop)
            program = f", {hop.program.text}" if isinstance(hop, NatHop) and hop.program else ""
            return f"{hop.hook} {_format_translation(hop)} {format_rewrite(hop.nat)}{program}{derived}{owner}".lstrip()
        case IpvsRefusalHop():
            return f"{hop.hook} IPVS has no real server for it: {_format_verdict(hop)}"
        case HandshakeHop(handshake=handshake) if handshake.stage != "request":
            done = {True: "taken", False: "refused", None: "not known whether taken"}[handshake.accepted]
            return f"{handshake.stage} {done}, accept queue {handshake.accept_queue}/{handshake.accept_limit}"
        case SocketHop(socket=socket):
            process = f", {socket.command} (pid {socket.pid})" if socket.pid else ""
            return f"socket {socket.state}".strip() + process
        case DropHop(drop=drop) if not is_benign(drop):
            if drop.program:
                return f"drop {drop.program.text}"
            return f"drop {drop.reason or 'without a reason'} in {drop.function or 'an unknown function'}"
        case RedirectHop(redirect=redirect):
            return f"redirected {redirect.text}"
        case DetailHop(detail=detail):
            return _format_detail(detail)
        case RuleHop() if hop.is_decisive:
            return f"{hop.hook} {hop.table or hop.kind} {_format_verdict(hop)}{_format_owner(hop)}"
        case HookHop() if hop.is_decisive:
            return f"{hop.hook} {hop.kind} {hop.verdict}"
    return ""


def _format_detail(detail: DecisionDetail) -> str:
    if queue_details.is_of_queue(detail):
        return f"{queue_details.format_queue(detail)} {queue_details.format_detail(detail)}"
    if detail.what == "neighbour":
        return "waits for the next hop's link address"
    if detail.what == "reset":
        state = detail.facts.get("state")
        return "answered with a reset, " + (f"by a socket in {state}" if state else "for no socket takes it")
    if detail.what == "lookup":
        return f"socket {detail.facts.get('socket')} chosen {detail.facts.get('chosen', '')}".rstrip()
    if detail.what == "connect":
        changed = detail.facts.get("changed")
        return f"its socket asked for {detail.facts.get('asked')}" + (f", changed {changed}" if changed else "")
    return ""


def _format_verdict(hop: DecidingHop) -> str:
    return f"{hop.verdict}{f' with {hop.reject}' if hop.reject else ''}"


def _format_owner(hop: RuleHop | RewriteHop) -> str:
    return f"  {hop.owner.text}" if hop.owner and hop.owner.known else ""


def _format_translation(hop: RewriteHop) -> str:
    """The kind of translation: "DNAT", "reverse MASQUERADE", "IPVS (rr)"."""
    if not isinstance(hop, IpvsNatHop):
        return hop.nat.kind
    scheduler = f" ({hop.decision.scheduler})" if hop.decision.scheduler else ""
    return ("reverse " if hop.nat.kind.startswith("reverse") else "") + "IPVS" + scheduler


@lru_cache(4096)
def format_rewrite(nat: Nat) -> str:
    """The endpoints that changed, before and after."""
    return " and ".join(
        f"{format_endpoint(*old)} -> {format_endpoint(*new)}"
        for old, new in (
            ((nat.before.src, nat.before.sport), (nat.after.src, nat.after.sport)),
            ((nat.before.dst, nat.before.dport), (nat.after.dst, nat.after.dport)),
        )
        if old != new
    )
