# SPDX-License-Identifier: Apache-2.0
"""Assembles packets from events: collects the events of each packet, and emits it when no more events come.

The kernel numbers the events of each packet. The number also advances when an event could not be written, so a gap shows a lost
event. A loss that leaves no gap is assigned by its time (tracer/packets/loss_history.py).
"""

from __future__ import annotations

import logging
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from operator import attrgetter
from typing import TypeAlias

from tracer.events import payload, record
from tracer.events.packet_groups import PacketGroups
from tracer.events.record import Event, EventArray, EventRow, Flag, Kind
from tracer.model.hop import Hop, trace_of
from tracer.model.loss import Loss
from tracer.model.packet import Flow, Packet
from tracer.packets import flooded_copies, header_tracker, outcome, path_signature
from tracer.packets.closed_packet import ClosedPacket, ClosedSharedPacket
from tracer.packets.hop_builder import HopBuilder
from tracer.packets.loss_history import LossHistory
from tracer.packets.open_packet import OpenPacket
from tracer.packets.path_signature import PathSignature
from tracer.packets.path_templates import PathTemplates, untracked_at
from tracer.packets.payload_store import PayloadStore
from tracer.packets.shared_packet import AnyPacket, SharedPacket, whole
from tracer.rules.rule_resolver import RuleResolver
from tracer.util.evictions import evictions
from tracer.util.frozen import evolve
from tracer.util.lru_dict import LruDict
from tracer.util.worker import user_warnings

IDLE_NS = 150_000_000
"""Idle timeout of a packet, ns. Neighbour look-ups and queues can take longer: the rest is then emitted as a second packet of
the same identity, which states that it continues the first."""

RULES_WAIT_NS = 10_000_000_000
"""Time without events, ns, that a packet is kept open at most while rules that acted on it are being read."""

CLOSED_KEPT_NS = 10_000_000_000
"""Closed packets are kept this long, ns, so that late events can be attached."""

OPEN_EVENTS = 1 << 18
"""Most events of packets that stay open: more than the ring holds. Beyond that packets are closed early, and are incomplete."""

CLOSED_KEPT = 1 << 16
"""Most closed packets that are kept. A late event of another one makes a packet that is incomplete."""

NAMESPACES_KEPT = 1 << 14
"""Most namespaces kept as users of conntrack. In another one a packet without an entry is not called INVALID."""

CHUNK_PACKETS = 64
"""Packets that are closed and explained per chunk."""

SIGNED_PACKETS = 1024
"""Packets of which signatures are computed at once."""

EXAMINED_PACKETS = SIGNED_PACKETS
"""Idle packets of which is examined at once whether they wait for rules."""

DIFFERENT = (
    "A packet was explained in two ways that differ, which is a defect of k8snet-trace: earlier packets may be wrong (--debug)."
)

_log = logging.getLogger(__name__)
_CT_STATES = {0: "ESTABLISHED", 1: "RELATED", 2: "NEW", 3: "ESTABLISHED", 4: "RELATED"}


_Ends: TypeAlias = frozenset[tuple[bytes, int]]
"""Two addresses with their ports, in no order: the same for both directions."""


def _ends_of(records: Iterable[EventRow]) -> list[_Ends]:
    """The endpoints of a packet where it was first seen, and those of its connection where it was first tracked."""
    found: list[_Ends] = []
    for e in records:
        if isinstance(e, Event) and e.kind != Kind.EVENT_CLUE and not e.flags & (Flag.FLAG_NO_HEADER | Flag.FLAG_SAME):
            if not found:
                found.append(frozenset(((e.src, e.sport), (e.dst, e.dport))))
            if e.flags & Flag.FLAG_HAS_CT:
                found.append(frozenset(((e.orig_src, e.orig_sport), (e.orig_dst, e.orig_dport))))
                found.append(frozenset(((e.reply_src, e.reply_sport), (e.reply_dst, e.reply_dport))))
                break
    return found


def _is_same(own: Packet, shared: Packet) -> bool:
    """Whether two packets are equal, also in what their classes do not compare."""
    own_rules, shared_rules = ([(trace := trace_of(h)) and trace.ruleset for h in packet.hops] for packet in (own, shared))
    if own != shared or not all(a is b for a, b in zip(own_rules, shared_rules, strict=True)):
        return False
    return bool(own.flow and shared.flow and own.flow.netns == shared.flow.netns)


class PacketAssembler:
    """Assembles packets; keeps the open ones by identity. All state of a packet is forgotten when it is closed.

    Args:
        hops: Builds hops from events.
        wall_offset: Added to CLOCK_MONOTONIC to get ns since the epoch.
        tracking: Namespaces (inodes) known to use conntrack. Others are added when a packet in them has an entry.
        quiet: Idle timeout, ns.
        rules: Finds the rules that acted; without it no hop has a rule trace.
        is_sharing: Packets with the path of an earlier packet are filled in from it (path_templates.py).
        compared_every: Each one of this number of them is also explained on its own, and compared; 0 = none.
        holds_answers: While rules of a packet are being read, the later packets of its connection stay open, too. Captures of
            format 1 were made without it.

    Attributes:
        unaddressed: Packets that were not emitted because no event had their addresses.
        events: Events taken so far.
        is_uniform: Each question to the machine has one answer while packets are closed.
        shared: Packets that were filled in from a template.
    """

    unaddressed = 0

    def __init__(
        self,
        hops: HopBuilder,
        wall_offset: int = 0,
        tracking: Iterable[int] = (),
        idle_ns: int = IDLE_NS,
        rules: RuleResolver | None = None,
        is_sharing: bool = True,
        compared_every: int = 0,
        holds_answers: bool = True,
    ) -> None:
        self.is_sharing, self.is_uniform, self.shared = is_sharing, True, 0
        self._compared_every, self._holds_answers = compared_every, holds_answers
        self._rules = rules or RuleResolver()
        self._hops, self._offset, self._idle_ns = hops, wall_offset, idle_ns
        self._open: dict[int, OpenPacket] = {}
        self._closed: LruDict[int, ClosedPacket | ClosedSharedPacket] = LruDict(CLOSED_KEPT, "closed packets")
        self._losses = LossHistory()
        self._bytes = PayloadStore()
        self._tracked: LruDict[int, None] = LruDict(NAMESPACES_KEPT, "namespaces that use conntrack")
        self._tracked.update(dict.fromkeys(tracking))
        self._templates = PathTemplates(hops, self._rules, self._tracked, wall_offset)
        self._open_events = 0
        self._number = self._newest = 0
        self._waiting_since: int | None = None
        self.events = 0

    def feed(self, batch: EventArray) -> None:
        """Takes a batch of events (rows of the record's dtype) in the order in which the kernel wrote them."""
        batch = self._rules.feed(batch)
        if not len(batch):
            return
        batch, pieces = payload.split(batch)
        for packet, first, piece in pieces:
            self._bytes.add(packet, first, piece)
        self.events += len(batch)
        self._open_events += len(batch)
        opened = self._open
        is_settled = self._rules.is_settled
        groups = PacketGroups(batch["packet"])
        for identity, octets in zip(groups.identities, groups.octets(batch), strict=True):
            if identity in opened:
                opened[identity].add(octets, is_settled)
            else:
                opened[identity] = OpenPacket(octets, is_settled)
        if len(batch):
            self._newest = int(batch["time"][-1])

    def add_losses(self, losses: Sequence[Loss], now: int) -> None:
        """Takes losses that happened at `now` (ns, CLOCK_MONOTONIC) at the latest."""
        self._losses.add(losses, now)
        self._rules.add_losses(losses)

    @property
    def is_waiting_for_rules(self) -> bool:
        """Whether rules that acted on open packets are being read."""
        return any(self._is_waiting(packet) for packet in self._open.values())

    @property
    def open(self) -> int:
        """Number of packets not yet emitted."""
        return len(self._open)

    def horizon(self, now: int) -> int:
        """Time up to which all packets are closed, ns: `now`, or the beginning of a packet that waits for its rules."""
        return now if self._waiting_since is None else min(now, self._waiting_since)

    def closed(self, now: int) -> list[Packet]:
        """Closes idle packets; oldest first. `now`: ns, CLOCK_MONOTONIC, taken before the last drain."""
        return [whole(packet) for chunk in self.chunks(now) for packet in chunk]

    def flush(self) -> list[Packet]:
        """Closes all open packets; oldest first."""
        return [whole(packet) for chunk in self.chunks() for packet in chunk]

    def chunks(self, now: int | None = None) -> Iterator[list[AnyPacket]]:
        """Yields closed packets in chunks, oldest first; `now=None` closes all. Packets of chunks not taken stay open."""
        self._forget()
        self._waiting_since = None
        early: set[int] = set()
        if now is None:
            parts: Iterable[list[int]] = [sorted(self._open, key=self._beginning)]
        else:
            parts = self._idle_since(now)
            if self._open_events > OPEN_EVENTS:
                closing = list(chain.from_iterable(parts))
                early = self._surplus(closing)
                parts = [sorted([*closing, *early], key=self._beginning)]
        for part in parts:
            for start in range(0, len(part), SIGNED_PACKETS):
                signed = part[start : start + SIGNED_PACKETS]
                signed_with = self._signatures(signed, early)
                for at in range(0, len(signed), CHUNK_PACKETS):
                    yield self._close(signed[at : at + CHUNK_PACKETS], early, signed_with)

    def _beginning(self, identity: int) -> int:
        """Time of the first event of an open packet."""
        began: int = self._open[identity].began
        return began

    def _idle_since(self, now: int) -> Iterator[list[int]]:
        """Yields packets without an event for the idle timeout, in parts, oldest first.

        A packet stays open while its rules are being read, and so do the later packets of its connection: an answer is never
        closed before the packet that it answers. A part is examined when it is asked for: while rules are being read that takes
        long, and a run has to show packets and to end meanwhile.
        """
        idle = [(identity, packet) for identity, packet in self._open.items() if now - packet.last > self._idle_ns]
        idle.sort(key=lambda each: each[1].began)
        since: dict[_Ends, int] = {}
        for start in range(0, len(idle), EXAMINED_PACKETS):
            yield self._ready(idle[start : start + EXAMINED_PACKETS], since, now)

    def _ready(self, part: Sequence[tuple[int, OpenPacket]], since: dict[_Ends, int], now: int) -> list[int]:
        """The packets of a part that neither wait for rules nor follow one that does.

        Args:
            part: Idle packets, oldest first; the parts before it have been examined.
            since: When the first waiting packet of a connection began, by its ends; those of this part are added.
            now: Time of the batch, ns, CLOCK_MONOTONIC.
        """
        waiting = {n: packet for n, packet in part if now - packet.last <= RULES_WAIT_NS and self._is_waiting(packet)}
        if waiting and self._holds_answers:
            for packet in waiting.values():
                for ends in _ends_of(packet.events):
                    since[ends] = min(packet.began, since.get(ends, packet.began))
            oldest = min(packet.began for packet in waiting.values())
            self._waiting_since = oldest if self._waiting_since is None else min(self._waiting_since, oldest)

        def follows(packet: OpenPacket) -> bool:
            return any(since.get(ends, packet.began) < packet.began for ends in _ends_of(packet.events))

        return [identity for identity, packet in part if identity not in waiting and not (since and follows(packet))]

    def _is_waiting(self, packet: OpenPacket) -> bool:
        """Whether rules that acted on a packet are being read."""
        return not packet.is_settled and self._rules.is_waiting_for(packet.events)

    def _surplus(self, closing: list[int]) -> set[int]:
        """Packets to close before they are idle, those without an event for the longest time first."""
        surplus = self._open_events - OPEN_EVENTS - sum(self._open[identity].count for identity in closing)
        early: set[int] = set()
        for identity in sorted(self._open.keys() - closing, key=lambda each: self._open[each].last):
            if surplus <= 0:
                break
            early.add(identity)
            surplus -= self._open[identity].count
        evictions.add("open packets", len(early))
        return early

    def _signatures(self, identities: Sequence[int], early: Container[int]) -> dict[int, PathSignature]:
        """The signatures of packets that may share the path of an earlier packet, by identity."""
        if not self.is_sharing or not self.is_uniform or self._losses:
            return {}
        may_share = [i for i in identities if self._open[i].is_settled and i not in self._closed]
        if early or self._bytes:
            may_share = [i for i in may_share if not (i in early or i in self._bytes)]
        found = path_signature.signatures([self._open[i] for i in may_share])
        return {identity: signature for identity, signature in zip(may_share, found, strict=True) if signature}

    def _close(
        self, identities: Sequence[int], early: Container[int], signatures: Mapping[int, PathSignature]
    ) -> list[AnyPacket]:
        """Closes packets, and forgets all but what late events need. early: those that are closed before they are idle."""
        packets: list[AnyPacket] = []
        lookups, has_payloads, templates = self._hops.lookups, bool(self._bytes), self._templates
        templates.refresh()
        for identity in identities:
            opened, signature = self._open.pop(identity), signatures.get(identity)
            self._open_events -= opened.count
            lookups.begin()
            signature = signature if self.is_sharing else None
            shared = templates.find(identity, opened, signature) if signature else None
            if shared and signature:
                self.shared += 1
                is_compared = self._compared_every and self.shared % self._compared_every == 0
                packets.append(self._compared(identity, opened, shared) if is_compared else shared)
                self._closed[identity] = ClosedSharedPacket.of(shared, opened, signature.order)
            elif opened.has_event:
                packet = self._packet(identity, opened, identity in early, signature)
                packets += [packet] if packet else []
                templates.refresh()
            if has_payloads:
                self._bytes.pop(identity, None)
        self._rules.forget(identities)
        packets.sort(key=attrgetter("time"))
        for at, closed in enumerate(packets):
            self._number += 1
            if isinstance(closed, SharedPacket):
                closed.number = self._number
            else:
                packets[at] = evolve(closed, number=self._number)
        return packets

    def _compared(self, identity: int, opened: OpenPacket, found: SharedPacket) -> AnyPacket:
        """Explains a packet also on its own. If that is different, no further packet is filled in from a template."""
        shared = found.packet()
        self._hops.lookups.settle()
        own = self._packet(identity, opened, False, None)
        self._templates.refresh()
        if own is not None and _is_same(own, shared):
            return found
        self.is_sharing = False
        _log.error("filled in: %r; explained on its own: %r", shared, own)
        user_warnings.add(DIFFERENT)
        return own or shared

    def _packet(self, identity: int, opened: OpenPacket, is_early: bool, signature: PathSignature | None) -> Packet | None:
        """Assembles one packet without its number; None if every event with its addresses was lost."""
        records = sorted(opened.events, key=lambda e: e.time)
        closed = self._closed.pop(identity, None)
        before = closed.headers() if closed else None
        events = [e for e in records if isinstance(e, Event)]
        completed, whole_event = header_tracker.complete_events(events, before.whole if before else None)
        events = completed or events
        first = before.first if before else next((e for e in events if not e.flags & Flag.FLAG_NO_HEADER), None)
        if first is None:
            self.unaddressed += 1
            return None
        expected = before.next if before else 0
        numbers = {e.hop for e in records if not e.flags & Flag.FLAG_CLONE}
        is_whole = not self._losses.concerns(records) and numbers == set(range(expected, expected + len(numbers)))
        is_whole = is_whole and (before is None or before.complete) and not is_early
        self._rules.begin_packet(records, is_whole)
        hops = flooded_copies.resolve_copies(header_tracker.build_hops(events, self._hop) or [self._hops.make(events[0])])
        packet = Packet(
            identity=identity,
            time=events[0].time + self._offset,
            netns=hops[0].netns,
            iface=next((h.in_iface or h.out_iface for h in hops if h.in_iface or h.out_iface), ""),
            family=record.family(first),
            protocol=record.protocol(first),
            endpoints=before.endpoints if before else header_tracker.original_endpoints(first, hops),
            tcp_flags=record.tcp_flags(first),
            length=first.length,
            seq=first.seq,
            ack=first.ack,
            flow=self._flow(events),
            hops=tuple(hops),
            complete=is_whole,
            continues=before.began + self._offset if before else 0,
            untracked=self._untracked(events),
            icmp=record.icmp(first),
            ident=first.ident,
            raw=payload.joined(self._bytes.get(identity, {})),
        )
        verdict, word = outcome.classify(packet, packet.untracked)
        packet = evolve(packet, verdict=verdict, outcome=word)
        if signature:
            self._templates.keep(identity, opened, signature, packet, events)
        began = before.began if before else events[0].time
        next_number = max(numbers, default=expected - 1) + 1
        self._closed[identity] = ClosedPacket(
            began, records[-1].time, next_number, is_whole, packet.endpoints, first, whole_event
        )
        return packet

    def _forget(self) -> None:
        """Forgets old closed packets. They are kept in closing order, up to the disorder within a batch."""
        if self._losses:
            self._losses.forget(min((packet.last for packet in self._open.values()), default=self._newest))
        while (oldest := self._closed.oldest) and self._newest - oldest[1].last > CLOSED_KEPT_NS:
            del self._closed[oldest[0]]
        # Payload bytes of packets that have no events any more: these were lost. An identity begins with the time.
        while (unopened := self._bytes.oldest) and unopened[0] not in self._open:
            if self._newest - (unopened[0] >> 8) <= CLOSED_KEPT_NS:
                break
            del self._bytes[unopened[0]]

    def _hop(self, e: Event) -> Hop:
        return self._hops.make(e, self._rules.resolve(e))

    def _flow(self, events: list[Event]) -> Flow | None:
        """The connection as last seen in the first namespace that tracks it: the conntrack of a pod does not know of NAT."""
        tracked = [e for e in events if e.flags & Flag.FLAG_HAS_CT and not e.flags & Flag.FLAG_NO_HEADER]
        if not tracked:
            return None
        self._tracked.update(dict.fromkeys(e.netns for e in tracked))
        e = [t for t in tracked if t.netns == tracked[0].netns][-1]
        state = _CT_STATES.get(e.ct_info, str(e.ct_info))
        netns = self._hops.lookups.name(e.netns)
        return Flow(record.original(e), record.reply(e), state, e.ct_info in (3, 4), e.zone, netns)

    def _untracked(self, events: list[Event]) -> str:
        """Why the packet had no conntrack entry after PREROUTING: "INVALID", "UNTRACKED"; "" if it had one."""
        last = untracked_at(events)
        if last is None:
            return ""
        if last.ct_info == record.UNTRACKED:
            return "UNTRACKED"
        return "INVALID" if last.netns in self._tracked else ""
