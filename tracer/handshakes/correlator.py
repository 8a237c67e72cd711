# SPDX-License-Identifier: Apache-2.0
"""Joins each SYN with what answered it, and says when its verdict can be told.

A SYN's sequence number survives every translation, and what answers it repeats it: a SYN-ACK and a reset acknowledge it, the
client's last ACK goes on from it. An ICMP error quotes it, and conntrack tells to which connection it belongs. So answers are
found by that number, and believed where an address and port pair of theirs is one of the SYN's, before or after translation.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from itertools import islice

from tracer.model.handshake import ConnectionAttempt
from tracer.model.packet import Endpoints, Packet
from tracer.packets.outcome import BAD

ANSWER_NS = 1_000_000_000
"""A SYN without an answer for so long is one that nobody answered: the client sends it again."""
NEIGHBOUR_NS = 6_000_000_000
"""So long a packet may wait for its next hop's link address, and the drop that then follows may take to be told."""
MAX_COMPARED = 1000
"""So many of the oldest are asked at a time whether they have waited long enough."""
MAX_ATTEMPTS = 20_000
"""So many attempts are kept open; when there are more, the oldest is told as far as it is known."""


def ends_of(packet: Packet) -> set[Endpoints]:
    """Every pair of ends that a packet had on its way, and its connection's, all in its own direction."""
    found = {packet.endpoints}
    for hop in packet.hops:
        if hop.nat:
            found |= {hop.nat.before, hop.nat.after}
    if packet.flow and not packet.protocol.startswith("ICMP"):
        orig, reply = packet.flow.orig, packet.flow.reply.reversed
        found |= {orig.reversed, reply.reversed} if packet.flow.is_reply else {orig, reply}
    return found


class HandshakeCorrelator:
    """Open attempts, oldest first. read: called for each that is over. partial: see Attempt."""

    def __init__(self, read: Callable[[ConnectionAttempt], None], partial: bool = False) -> None:
        self._read, self._partial = read, partial
        self._open: OrderedDict[int, ConnectionAttempt] = OrderedDict()
        self._by_next: dict[int, list[int]] = {}
        self._by_ends: dict[Endpoints, int] = {}
        self._ends: dict[int, set[Endpoints]] = {}
        self._ripe: set[int] = set()
        self._doubt = self._left = -1
        self.early = 0

    def __len__(self) -> int:
        return len(self._open)

    def feed(self, packet: Packet) -> None:
        """Takes a packet that is over, in the order in which packets end."""
        flags = packet.tcp_flags
        if packet.identity in self._open:
            self._more(packet, packet.identity)
            self._ripe.add(packet.identity)
        elif flags == "SYN":
            if not packet.continues:  # else its verdict has been told
                self._begin(packet)
        elif flags and (packet.ack in self._by_next or packet.seq in self._by_next):
            for attempt in self._answered(packet):
                self._note(attempt, packet, flags)
                self._ripe.add(attempt.syn.identity)
        elif packet.protocol.startswith("ICMP") and packet.flow and packet.flow.state == "RELATED":
            identity = self._by_ends.get(packet.flow.orig)
            if identity is not None:
                self._open[identity].errors.append(packet)
                self._ripe.add(identity)

    def _begin(self, syn: Packet) -> None:
        following = (syn.seq + 1) & 0xFFFFFFFF
        ends = ends_of(syn)
        before = [n for n in self._by_next.get(following, ()) if self._ends[n] & ends]
        if before and is_retransmission(self._open[before[-1]].syn, syn):
            self._more(syn, before[-1])
            self._ripe.add(before[-1])
            return
        again = self._open[before[-1]].again + 1 if before else 0
        self._open[syn.identity] = ConnectionAttempt(syn, syn.hops[0].time, again, partial=self._partial)
        self._by_next.setdefault(following, []).append(syn.identity)
        self._ends[syn.identity] = ends
        self._ripe.add(syn.identity)
        for each in ends:
            self._by_ends[each] = syn.identity
        if len(self._open) > MAX_ATTEMPTS:
            self.early += 1
            self._close(next(iter(self._open)))

    def _more(self, packet: Packet, identity: int) -> None:
        """A later part of a packet that had been taken for over: it has waited for its next hop, or come out of a tunnel."""
        syn = self._open[identity].syn
        syn.hops = [*syn.hops, *packet.hops]
        syn.verdict, syn.outcome, syn.complete = packet.verdict, packet.outcome, syn.complete and packet.complete

    def _answered(self, packet: Packet) -> Iterator[ConnectionAttempt]:
        """The latest attempt that this packet answers or carries on."""
        ends = ends_of(packet)
        turned = {e.reversed for e in ends}
        for number, back in ((packet.ack, True), (packet.seq, False)):
            for identity in reversed(self._by_next.get(number, ())):
                attempt = self._open[identity]
                if self._ends[identity] & (turned if back else ends) and packet.hops[-1].time >= attempt.began:
                    yield attempt
                    return

    @staticmethod
    def _note(attempt: ConnectionAttempt, packet: Packet, flags: str) -> None:
        if flags == "SYN ACK":
            attempt.synacks.append(packet)
        elif "RST" in flags:
            attempt.resets.append(packet)
        elif not attempt.acks:
            attempt.acks.append(packet)

    def add_loss(self, now: int, unexplained: bool = False) -> None:
        """Something was lost by now, or left unexplained: of all that are open, an answer may have been."""
        self._doubt = now
        self._left = now if unexplained else self._left

    def expire(self, now: int) -> None:
        """Reads those whose verdict can be told. now: ns, CLOCK_MONOTONIC."""
        for identity in sorted(self._ripe):
            if settled(self._open[identity]):
                self._close(identity)
        self._ripe.clear()
        for identity, attempt in list(islice(self._open.items(), MAX_COMPARED)):
            if now - attempt.began > answer_timeout_ns(attempt):
                self._close(identity)

    def flush(self) -> None:
        """Reads all that are open; the run is over."""
        for identity in list(self._open):
            self._close(identity)

    def _close(self, identity: int) -> None:
        attempt = self._open.pop(identity)
        self._ripe.discard(identity)
        following = (attempt.syn.seq + 1) & 0xFFFFFFFF
        left = [n for n in self._by_next[following] if n != identity]
        if left:
            self._by_next[following] = left
        else:
            del self._by_next[following]
        for each in self._ends.pop(identity):
            if self._by_ends.get(each) == identity:
                del self._by_ends[each]
        attempt.doubtful, attempt.unexplained = self._doubt >= attempt.began, self._left >= attempt.began
        self._read(attempt)


def is_retransmission(before: Packet, packet: Packet) -> bool:
    """Whether a packet is the rest of an earlier one, seen again in a namespace where that has not been: out of a tunnel, in
    another buffer. What is sent again begins where it began the first time."""
    return before.outcome not in BAD and all(h.netns != packet.netns for h in before.hops)


def waits_for_neighbour(attempt: ConnectionAttempt) -> bool:
    """Whether nothing has been seen of it since it began to wait for its next hop."""
    last = next((h for h in reversed(attempt.syn.hops) if not h.clone and h.what != "hook"), None)
    return bool(last and last.detail and last.detail.what == "neighbour")


def settled(attempt: ConnectionAttempt) -> bool:
    """Whether nothing that is still to come can change what the SYN's cause is."""
    if attempt.syn.outcome in BAD:
        return True
    return bool(attempt.resets or attempt.acks or attempt.errors) and bool(attempt.synacks or attempt.syn.handshake is None)


def answer_timeout_ns(attempt: ConnectionAttempt) -> int:
    """ns after which no answer is the answer."""
    return NEIGHBOUR_NS if waits_for_neighbour(attempt) else ANSWER_NS + 300_000_000
