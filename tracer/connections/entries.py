# SPDX-License-Identifier: Apache-2.0
"""A packet as one step of a timeline: who sent it, what changed on its way, how it ended, in few words that are kept."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

from tracer.model.evidence import Evidence
from tracer.model.packet import Hop, Nat, Packet
from tracer.model.timeline import Stage, TimelineEntry
from tracer.packets import flooded_copies, icmp, purged
from tracer.packets.outcome import BAD, benign
from tracer.util.endpoint_format import format_endpoint


def entry(packet: Packet, way: str, remark: str = "") -> TimelineEntry:
    """The step that a packet is. way, remark: as in Step."""
    text = f"{packet.tcp_flags or icmp.error(packet) or packet.protocol}, {packet.length} B"
    if "RST" in packet.tcp_flags or way == "!":
        text += f", {sender(packet)}"
    end = _end_of(packet)
    stages = tuple(_stages(packet))
    began = packet.hops[0].time
    return TimelineEntry(
        began, "packet", text, way, end, remark, stages, packet.outcome in BAD, packet.number, packet.netns, _same(packet, way)
    )


def _same(packet: Packet, way: str) -> int:
    """What no translation and no tunnel changes."""
    return hash((way, packet.seq, packet.ack, packet.tcp_flags, packet.length, packet.protocol))


def continues(entry: TimelineEntry, packet: Packet, way: str) -> bool:
    """Whether a packet is what this step tells of: later, or seen again in a namespace where it has not been, out of a tunnel,
    in another buffer. What is sent again begins where it began the first time."""
    if entry.same != _same(packet, way) or entry.kind != "packet" or entry.bad:
        return False
    elsewhere = packet.netns != entry.netns and all(stage.netns != packet.netns for stage in entry.stages)
    return bool(packet.continues) or elsewhere


def extended(entry: TimelineEntry, packet: Packet) -> TimelineEntry:
    """The step with the rest of its packet's way."""
    first = packet.hops[0]
    by = f", by {first.in_iface}" if first.in_iface else ""
    later = first.time - entry.time
    before = entry.stages[-1].netns if entry.stages else entry.netns
    here = [Stage(later, packet.netns, f"in {packet.netns}{by}, known by its header")] if packet.netns != before else []
    rest = (replace(stage, time=stage.time + later) for stage in _stages(packet))
    return replace(entry, stages=(*entry.stages, *here, *rest), end=_end_of(packet), bad=packet.outcome in BAD)


def _end_of(packet: Packet) -> str:
    return packet.verdict + ("" if packet.complete else " (incomplete)")


def sender(packet: Packet) -> str:
    """Who sent a packet, by where it was first seen: a namespace of this node, or whoever is behind an interface."""
    first = packet.hops[0]
    if first.hook == "OUTPUT" or not first.in_iface:
        return f"sent by {packet.netns}"
    return f"came in by {first.in_iface}{_in(packet.netns)}"


def _in(netns: str) -> str:
    return f" in {netns}" if netns not in ("", "node") else ""


def _stages(packet: Packet) -> Iterator[Stage]:
    began = packet.hops[0].time
    places = {False: packet.netns, True: packet.netns}  # its own, its copies'
    decided, others = False, [h for h in packet.hops if flooded_copies.of_no_one(h)]
    for hop in packet.hops:
        if flooded_copies.of_no_one(hop):
            if hop is others[0]:
                text = f"{len(others)} {'copies' if len(others) > 1 else 'copy'} dropped in other namespaces (OTHERHOST)"
                yield Stage(hop.time - began, places[False], text)
            continue
        if (decided and _follows(hop)) or (hop.clone and hop.drop and (benign(hop.drop) or purged.undecided(hop.drop))):
            continue
        decided = decided or (hop.what in ("table", "chain") and hop.verdict in ("DROP", "REJECT"))
        copy = " (copy)" * hop.clone
        if hop.netns and hop.netns != places[hop.clone]:
            places[hop.clone] = hop.netns
            yield Stage(hop.time - began, hop.netns, f"in {hop.netns}{f', by {hop.in_iface}' if hop.in_iface else ''}{copy}")
        text = _text(hop)
        if text:
            yield Stage(hop.time - began, places[hop.clone], text + copy)


def _follows(hop: Hop) -> bool:
    """Whether a hop only says what its table has decided: that the hook drops it, and that it is freed."""
    return hop.what == "hook" or bool(hop.drop and hop.drop.function == "nf_hook_slow")


def _text(hop: Hop) -> str:
    """What a hop did, if that is worth a line; "" if it only let the packet pass."""
    derived = " (derived)" if hop.evidence is Evidence.DERIVED else ""
    if hop.nat:
        owner = f"  {hop.owner.text}" if hop.owner and hop.owner.known and not hop.from_conntrack else ""
        return f"{hop.hook} {_translator(hop, hop.nat)} {rewrite(hop.nat)}{derived}{owner}"
    if hop.ipvs:
        return f"{hop.hook} IPVS has no real server for it: {hop.verdict}{f' with {hop.reject}' if hop.reject else ''}"
    if hop.handshake and hop.handshake.stage != "request":
        done = {True: "taken", False: "refused", None: "not known whether taken"}[hop.handshake.accepted]
        shake = hop.handshake
        return f"{shake.stage} {done}, accept queue {shake.accept_queue}/{shake.accept_limit}"
    if hop.socket:
        who = f", {hop.socket.command} (pid {hop.socket.pid})" if hop.socket.pid else ""
        return f"socket {hop.socket.state}".strip() + who
    if hop.drop and not benign(hop.drop):
        return f"drop {hop.drop.reason or 'without a reason'} in {hop.drop.function or 'an unknown function'}"
    if hop.detail and hop.detail.what == "neighbour":
        return "waits for the next hop's link address"
    if hop.detail and hop.detail.what == "reset":
        state = hop.detail.facts.get("state")
        return "answered with a reset, " + (f"by a socket in {state}" if state else "for no socket takes it")
    if hop.decisive and hop.what in ("table", "chain", "hook"):
        owner = f"  {hop.owner.text}" if hop.owner and hop.owner.known else ""
        return f"{hop.hook} {hop.table or hop.what} {hop.verdict}{f' with {hop.reject}' if hop.reject else ''}{owner}"
    return ""


def _translator(hop: Hop, nat: Nat) -> str:
    """DNAT, reverse MASQUERADE, IPVS (rr)."""
    if not hop.ipvs:
        return nat.kind
    how = f" ({hop.ipvs.scheduler})" if hop.ipvs.scheduler else ""
    return ("reverse " if nat.kind.startswith("reverse") else "") + "IPVS" + how


@lru_cache(4096)
def rewrite(nat: Nat) -> str:
    """The end that changed, before and after."""
    return " and ".join(
        f"{format_endpoint(*old)} -> {format_endpoint(*new)}"
        for old, new in (
            ((nat.before.src, nat.before.sport), (nat.after.src, nat.after.sport)),
            ((nat.before.dst, nat.before.dport), (nat.after.dst, nat.after.dport)),
        )
        if old != new
    )
