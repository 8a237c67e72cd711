# SPDX-License-Identifier: Apache-2.0
"""From events to packets: collects what belongs to one packet, and hands it out when nothing more comes.

The kernel numbers the events of each packet, and the number moves on also when an event could not be written: a gap means a
lost part. What leaves no gap is decided by when it was lost (tracer/packets/incomplete.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy.typing as npt

from tracer.events import payload, record
from tracer.events.record import Event, Flag, Kind
from tracer.model.loss import Loss
from tracer.model.packet import Endpoints, Flow, Hop, Packet
from tracer.packets import flooded_copies, header_tracker, outcome
from tracer.packets.hop_builder import HopBuilder
from tracer.packets.incomplete import LossHistory
from tracer.rules.rule_resolver import RuleResolver

IDLE_NS = 150_000_000
"""A packet is over when nothing has happened to it for so long. Neighbour look-ups and queues can take longer: the rest then
comes as a second packet of the same identity, which says that it continues the first."""

RULES_WAIT_NS = 10_000_000_000
"""So much longer a packet is kept open while rules that acted on it are being read."""

CLOSED_KEPT_NS = 10_000_000_000
"""So long it is remembered which packets are over, for what comes of them later."""

CHUNK_PACKETS = 64
"""So many packets are explained at once."""

_CT_STATES = {0: "ESTABLISHED", 1: "RELATED", 2: "NEW", 3: "ESTABLISHED", 4: "RELATED"}


class _ClosedPacket(NamedTuple):
    """What is remembered of a packet that is over: the times of its first and last hop (ns, CLOCK_MONOTONIC), the number of
    its next event, whether nothing of it was lost, its addresses as it came in, its first and its last event with a header."""

    began: int
    last: int
    next: int
    complete: bool
    endpoints: Endpoints
    first: Event
    whole: Event | None


class PacketAssembler:
    """Open packets by identity.

    wall_offset: what to add to CLOCK_MONOTONIC to get ns since the epoch. tracking: namespaces (inodes) known to use
    conntrack; others join when a packet in them has an entry. quiet: ns after which a packet is over. rules: tells which
    rules acted; without it no hop has a walk. unaddressed: packets that were not handed out, for no event told their addresses.
    """

    unaddressed = 0

    def __init__(
        self,
        hops: HopBuilder,
        wall_offset: int = 0,
        tracking: Iterable[int] = (),
        quiet: int = IDLE_NS,
        rules: RuleResolver | None = None,
    ) -> None:
        self._rules = rules or RuleResolver()
        self._hops, self._offset, self._idle_ns = hops, wall_offset, quiet
        self._open: dict[int, list[Event]] = {}
        self._last: dict[int, int] = {}
        self._closed: dict[int, _ClosedPacket] = {}
        self._losses = LossHistory()
        self._bytes: dict[int, payload.Pieces] = {}
        self._tracked = set(tracking)
        self._number = self._newest = 0
        self.events = 0

    def feed(self, batch: npt.NDArray[Any]) -> None:
        """Takes a batch of events in the order the kernel wrote them."""
        batch, pieces = payload.split(self._rules.feed(batch))
        for packet, first, piece in pieces:
            self._bytes.setdefault(packet, {})[first] = piece
        self.events += len(batch)
        opened, last = self._open, self._last
        for e in record.events(batch):
            opened.setdefault(e.packet, []).append(e)
            last[e.packet] = self._newest = e.time

    def add_losses(self, losses: Sequence[Loss], now: int) -> None:
        """Something was lost, at the latest now (ns, CLOCK_MONOTONIC)."""
        self._losses.add(losses, now)
        self._rules.add_losses(losses)

    @property
    def is_waiting_for_rules(self) -> bool:
        """Whether rules that acted on open packets are being read."""
        return any(self._rules.is_waiting_for(events) for events in self._open.values())

    @property
    def open(self) -> int:
        """How many packets have not been handed out."""
        return len(self._open)

    def closed(self, now: int) -> list[Packet]:
        """Packets that have been quiet long enough, oldest first. now: ns, CLOCK_MONOTONIC, taken before the last drain."""
        return [packet for chunk in self.chunks(now) for packet in chunk]

    def flush(self) -> list[Packet]:
        """All packets still open, oldest first; they are over now."""
        return [packet for chunk in self.chunks() for packet in chunk]

    def chunks(self, now: int | None = None) -> Iterator[list[Packet]]:
        """What finished() gives, and without a time rest(), by and by: whoever takes no more leaves the others open."""
        self._forget()
        over = list(self._open) if now is None else self._idle_since(now)
        over.sort(key=lambda identity: self._open[identity][0].time)
        for at in range(0, len(over), CHUNK_PACKETS):
            yield self._close(over[at : at + CHUNK_PACKETS])

    def _idle_since(self, now: int) -> list[int]:
        quiet = [p for p, time in self._last.items() if now - time > self._idle_ns]
        return [p for p in quiet if now - self._last[p] > RULES_WAIT_NS or not self._rules.is_waiting_for(self._open[p])]

    def _close(self, identities: Iterable[int]) -> list[Packet]:
        packets = []
        for identity in identities:
            del self._last[identity]
            records = self._open.pop(identity)
            if any(e.kind not in record.PARTS and e.kind != Kind.EVENT_CLUE for e in records):
                packet = self._packet(identity, records)
                packets += [packet] if packet else []
            self._bytes.pop(identity, None)
        packets.sort(key=lambda p: p.time)
        for packet in packets:
            self._number += 1
            packet.number = self._number
        return packets

    def _packet(self, identity: int, records: list[Event]) -> Packet | None:
        """None when every event that had the packet's addresses was lost."""
        records.sort(key=lambda e: e.time)
        before = self._closed.pop(identity, None)
        events = [e for e in records if e.kind not in record.PARTS]
        known, whole_event = header_tracker.completed(events, before.whole if before else None)
        events = known or events
        first = before.first if before else next((e for e in events if not e.flags & Flag.FLAG_NO_HEADER), None)
        if first is None:
            self.unaddressed += 1
            self._rules.forget(identity)
            return None
        expected = before.next if before else 0
        numbers = {e.hop for e in records if not e.flags & Flag.FLAG_CLONE}
        whole = not self._losses.concerns(records) and numbers == set(range(expected, expected + len(numbers)))
        whole = whole and (before is None or before.complete)
        self._rules.begin_packet(records, whole)
        hops = flooded_copies.settled(header_tracker.followed(events, self._hop) or [self._hops.make(events[0])])
        packet = Packet(
            identity=identity,
            time=events[0].time + self._offset,
            netns=hops[0].netns,
            iface=next((h.in_iface or h.out_iface for h in hops if h.in_iface or h.out_iface), ""),
            family=record.family(first),
            protocol=record.protocol(first),
            endpoints=before.endpoints if before else header_tracker.as_it_came(first, hops),
            tcp_flags=record.tcp_flags(first),
            length=first.length,
            seq=first.seq,
            ack=first.ack,
            flow=self._flow(events),
            hops=hops,
            complete=whole,
            continues=before.began + self._offset if before else 0,
            icmp=record.icmp(first),
            raw=payload.joined(self._bytes.get(identity, {})),
        )
        began = before.began if before else events[0].time
        following = max(numbers, default=expected - 1) + 1
        self._closed[identity] = _ClosedPacket(began, records[-1].time, following, whole, packet.endpoints, first, whole_event)
        self._rules.forget(identity)
        packet.untracked = self._untracked(events)
        packet.verdict, packet.outcome = outcome.classify(packet, packet.untracked)
        return packet

    def _forget(self) -> None:
        """Those that were over first stand first, within what a batch mixes up."""
        if self._losses:
            self._losses.forget(min(self._last.values(), default=self._newest))
        while self._closed and self._newest - self._closed[identity := next(iter(self._closed))].last > CLOSED_KEPT_NS:
            del self._closed[identity]
        # Bytes whose packet is told of no further: its events were lost. An identity begins with the time.
        while self._bytes and (identity := next(iter(self._bytes))) not in self._open:
            if self._newest - (identity >> 8) <= CLOSED_KEPT_NS:
                break
            del self._bytes[identity]

    def _hop(self, e: Event) -> Hop:
        return self._hops.make(e, **self._rules.resolve(e))

    def _flow(self, events: list[Event]) -> Flow | None:
        """The connection as last seen in the first namespace that tracks it: a pod's own conntrack knows nothing of NAT."""
        tracked = [e for e in events if e.flags & Flag.FLAG_HAS_CT and not e.flags & Flag.FLAG_NO_HEADER]
        if not tracked:
            return None
        self._tracked.update(e.netns for e in tracked)
        e = [t for t in tracked if t.netns == tracked[0].netns][-1]
        state = _CT_STATES.get(e.ct_info, str(e.ct_info))
        netns = self._hops.namespaces.name(e.netns)
        return Flow(record.original(e), record.reply(e), state, e.ct_info in (3, 4), e.zone, netns)

    def _untracked(self, events: list[Event]) -> str:
        """What it means that the packet had no conntrack entry after PREROUTING: "INVALID", "UNTRACKED", or "" if it had."""
        late = [e for e in events if e.kind in (Kind.EVENT_HOOK, Kind.EVENT_TABLE, Kind.EVENT_CHAIN) and e.hook in (1, 2, 4)]
        late = [e for e in late if not e.flags & Flag.FLAG_NO_HEADER and e.pf not in (record.NETDEV, record.BRIDGE)]
        if not late or late[-1].flags & Flag.FLAG_HAS_CT:
            return ""
        if late[-1].ct_info == 7:
            return "UNTRACKED"
        return "INVALID" if late[-1].netns in self._tracked else ""
