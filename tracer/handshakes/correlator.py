# SPDX-License-Identifier: Apache-2.0
"""Joins each SYN with its answers, and decides when its verdict is final.

Address translation does not change a SYN's sequence number, and its answers repeat it: a SYN-ACK and a reset acknowledge it,
the client's last ACK continues from it. An ICMP error quotes the SYN, and conntrack gives its connection. So answers are found
by that number. They are accepted if they share a pair of endpoints with the SYN, before or after address translation. An ICMP
error is accepted if the SYN had the quoted endpoints in the namespace that tracks them, and in the same zone.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice

from tracer.model.connection import Alias, anywhere, make_alias, reverse
from tracer.model.handshake import ConnectionAttempt
from tracer.model.hop import DetailHop, HookHop, alike
from tracer.model.packet import Packet
from tracer.packets.aliases import Aliases
from tracer.packets.outcome import BAD
from tracer.packets.shared_packet import AnyPacket, SharedPacket, hop_time, whole
from tracer.util.evictions import evictions
from tracer.util.frozen import evolve

ANSWER_NS = 1_000_000_000
"""Time after which a SYN counts as unanswered, ns: the client then sends it again."""
NEIGHBOUR_NS = 6_000_000_000
"""Maximum time that a packet waits for the link address of its next hop, including the report of the drop, ns."""
MAX_CHECKED = 1000
"""Number of the oldest attempts that one `expire` checks for their timeout."""
MAX_ATTEMPTS = 20_000
"""Maximum number of open attempts. When there are more, the oldest one gets its verdict from the packets seen so far."""
MAX_ANSWERS = 16
"""Maximum number of SYN-ACKs, of resets and of ICMP errors that are kept for one attempt."""


MAX_ALIASES = 64
"""Maximum number of aliases of one attempt, rounded up to a whole packet."""


@dataclass(slots=True)
class _OpenAttempt:
    """An open attempt, and what leads to it.

    Attributes:
        attempt: the attempt.
        aliases: the SYN's aliases.
    """

    attempt: ConnectionAttempt
    aliases: dict[Alias, None] = field(default_factory=dict)

    def has_any(self, ends: set[Alias]) -> bool:
        """Whether the SYN had one of these endpoints in any namespace, in this direction."""
        return any(anywhere(alias) in ends for alias in self.aliases)


class HandshakeCorrelator:
    """Open attempts, oldest first.

    Args:
        on_closed: called with each attempt when it is closed.
        partial: see ConnectionAttempt.
        one_sided: see ConnectionAttempt.

    Attributes:
        early: number of attempts that were closed because more than MAX_ATTEMPTS were open.
    """

    def __init__(self, on_closed: Callable[[ConnectionAttempt], None], partial: bool = False, one_sided: bool = False) -> None:
        self._on_closed, self._partial, self._one_sided, self._aliases = on_closed, partial, one_sided, Aliases()
        self._open: OrderedDict[int, _OpenAttempt] = OrderedDict()
        self._by_next_seq: dict[int, list[int]] = {}
        self._by_alias: dict[Alias, int] = {}
        self._changed: set[int] = set()
        self._lost_at = self._unexplained_at = -1
        self.early = 0

    def __len__(self) -> int:
        return len(self._open)

    def feed(self, packet: Packet) -> None:
        """Takes a closed packet, in the order in which packets are closed."""
        flags = packet.tcp_flags
        if packet.identity in self._open:
            self._extend(packet, packet.identity)
            self._changed.add(packet.identity)
        elif flags == "SYN":
            if not packet.continues:  # otherwise its verdict was given already
                self._begin(packet)
        elif flags and (packet.ack in self._by_next_seq or packet.seq in self._by_next_seq):
            self._answer(packet, flags)
        elif packet.protocol.startswith("ICMP"):
            identity = self._quoted(packet)
            if identity is not None:
                attempt = self._open[identity].attempt
                self._keep(attempt, attempt.errors, packet)
                self._changed.add(identity)

    def repeat(self, packet: SharedPacket) -> None:
        """Takes a closed TCP packet on a shared path; it is made whole only if it is kept."""
        flags, numbers = packet.way.sample.tcp_flags, self._by_next_seq
        if flags == "SYN" or packet.identity in self._open:
            self.feed(packet.packet())
        elif flags and numbers and (packet.ack in numbers or packet.seq in numbers):
            self._answer(packet, flags)

    def _answer(self, packet: AnyPacket, flags: str) -> None:
        for attempt in self._find_attempt(packet):
            self._add_answer(attempt, packet, flags)
            self._changed.add(attempt.syn.identity)

    def _quoted(self, error: Packet) -> int | None:
        """The attempt of the SYN that an ICMP error quotes."""
        flow = error.flow
        if not flow or flow.state != "RELATED":
            return None
        identity = self._by_alias.get(make_alias(flow.netns, "TCP", flow.orig))
        own = None if identity is None else self._open[identity].attempt.syn.flow
        return None if own and own.netns == flow.netns and own.zone != flow.zone else identity

    def _begin(self, syn: Packet) -> None:
        next_seq = (syn.seq + 1) & 0xFFFFFFFF
        same_number = self._by_next_seq.get(next_seq)
        ends = self._aliases.ends(syn) if same_number else set()
        earlier = [n for n in same_number or () if self._open[n].has_any(ends)]
        if earlier and is_continuation(self._open[earlier[-1]].attempt.syn, syn):
            self._extend(syn, earlier[-1])
            self._changed.add(earlier[-1])
            return
        again = self._open[earlier[-1]].attempt.again + 1 if earlier else 0
        attempt = ConnectionAttempt(syn, hop_time(syn, 0), again, partial=self._partial, one_sided=self._one_sided)
        self._open[syn.identity] = _OpenAttempt(attempt)
        self._by_next_seq.setdefault(next_seq, []).append(syn.identity)
        self._changed.add(syn.identity)
        self._add_aliases(syn, syn.identity)
        if len(self._open) > MAX_ATTEMPTS:
            self.early += 1
            evictions.add("open SYNs")
            oldest = next(iter(self._open.values())).attempt
            oldest.limited = oldest.limited or not is_settled(oldest)
            self._close(oldest.syn.identity)

    def _add_aliases(self, packet: Packet, identity: int) -> None:
        own = self._open[identity]
        if len(own.aliases) >= MAX_ALIASES:
            own.attempt.limited = True
            evictions.add("addresses of SYNs")
            return
        found = self._aliases.of(packet)
        own.aliases.update(found)
        for alias in found:
            self._by_alias[alias] = identity

    def _extend(self, packet: Packet, identity: int) -> None:
        """Adds a later part of a SYN that was closed before: it has waited for its next hop, or left a tunnel."""
        self._add_aliases(packet, identity)
        attempt = self._open[identity].attempt
        syn = attempt.syn
        attempt.syn = evolve(
            syn,
            hops=(*syn.hops, *packet.hops),
            verdict=packet.verdict,
            outcome=packet.outcome,
            complete=syn.complete and packet.complete,
        )

    def _find_attempt(self, packet: AnyPacket) -> Iterator[ConnectionAttempt]:
        """Yields the latest attempt that this packet answers or continues, if there is one."""
        ends = self._aliases.ends(packet)
        swapped = {reverse(e) for e in ends}
        for number, is_answer in ((packet.ack, True), (packet.seq, False)):
            for identity in reversed(self._by_next_seq.get(number, ())):
                found = self._open[identity]
                if found.has_any(swapped if is_answer else ends) and hop_time(packet, -1) >= found.attempt.began:
                    yield found.attempt
                    return

    def _add_answer(self, attempt: ConnectionAttempt, packet: AnyPacket, flags: str) -> None:
        if flags == "SYN ACK":
            self._keep(attempt, attempt.synacks, whole(packet))
        elif "RST" in flags:
            self._keep(attempt, attempt.resets, whole(packet))
        elif not attempt.acks:
            attempt.acks.append(whole(packet))

    @staticmethod
    def _keep(attempt: ConnectionAttempt, answers: list[Packet], packet: Packet) -> None:
        """Adds an answer, unless there are too many already."""
        if len(answers) < MAX_ANSWERS:
            answers.append(packet)
        else:
            attempt.limited = True
            evictions.add("answers to SYNs")

    def add_loss(self, now: int, unexplained: bool = False) -> None:
        """Notes that packets were lost or left unexplained up to `now`: answers to open attempts may be among them."""
        self._lost_at = now
        self._unexplained_at = now if unexplained else self._unexplained_at

    def expire(self, now: int) -> None:
        """Closes the attempts whose verdict is final. now: ns, CLOCK_MONOTONIC."""
        for identity in sorted(self._changed):
            if is_settled(self._open[identity].attempt):
                self._close(identity)
        self._changed.clear()
        for identity, found in list(islice(self._open.items(), MAX_CHECKED)):
            if now - found.attempt.began > answer_timeout_ns(found.attempt):
                self._close(identity)

    def flush(self) -> None:
        """Closes all open attempts at the end of the run."""
        for identity in list(self._open):
            self._close(identity)

    def _close(self, identity: int) -> None:
        closed = self._open.pop(identity)
        attempt = closed.attempt
        self._changed.discard(identity)
        next_seq = (attempt.syn.seq + 1) & 0xFFFFFFFF
        others = [n for n in self._by_next_seq[next_seq] if n != identity]
        if others:
            self._by_next_seq[next_seq] = others
        else:
            del self._by_next_seq[next_seq]
        for alias in closed.aliases:
            if self._by_alias.get(alias) == identity:
                del self._by_alias[alias]
        attempt.doubtful = self._lost_at >= attempt.began or attempt.limited
        attempt.unexplained = self._unexplained_at >= attempt.began
        self._on_closed(attempt)


def is_continuation(earlier: Packet, packet: Packet) -> bool:
    """Whether a packet is the earlier packet, seen again in a new namespace: after a tunnel, in another buffer.

    A retransmission does not count: it begins in the namespace where the first transmission began.
    """
    return earlier.outcome not in BAD and all(h.netns != packet.netns for h in alike(earlier.hops))


def waits_for_neighbour(attempt: ConnectionAttempt) -> bool:
    """Whether the SYN was not seen again since it began to wait for the link address of its next hop."""
    last = next((h for h in reversed(alike(attempt.syn.hops)) if not h.clone and not isinstance(h, HookHop)), None)
    return isinstance(last, DetailHop) and last.detail.what == "neighbour"


def is_settled(attempt: ConnectionAttempt) -> bool:
    """Whether no later packet can change the SYN's cause."""
    if attempt.syn.outcome in BAD:
        return True
    return bool(attempt.resets or attempt.acks or attempt.errors) and bool(attempt.synacks or attempt.syn.handshake is None)


def answer_timeout_ns(attempt: ConnectionAttempt) -> int:
    """Time after which the attempt is closed without an answer, ns."""
    return NEIGHBOUR_NS if waits_for_neighbour(attempt) else ANSWER_NS + 300_000_000
