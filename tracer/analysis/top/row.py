# SPDX-License-Identifier: Apache-2.0
"""The figures of one row of `top`, in one interval."""

from __future__ import annotations

from collections import Counter, deque

from tracer.analysis.durations import Distribution
from tracer.analysis.top.dimensions import UNKNOWN
from tracer.model.handshake import HandshakeVerdict
from tracer.model.packet import Packet
from tracer.packets.outcome import BAD
from tracer.packets.shared_packet import hop_time
from tracer.util.lru_dict import LruDict

MOST_WAYS = 32
"""Number of ways between two places of which a row keeps the times."""
MOST_PACKETS = 16
"""Number of the newest packets that a row keeps, to be looked at."""
MOST_FAILURES = 8
"""Number of the newest packets that failed, which a row keeps beside them."""
NOT_KNOWN = "not known"
"""Cause of a SYN of which nothing is known: neither a success nor a failure."""


class Row:
    """Counts the packets and the SYNs of one row.

    Attributes:
        owner: Owner of the rule or of the address; UNKNOWN = not known; "" = the dimension has no owners.
        packets: Number of packets.
        drops: Those that did not reach their destination: dropped, rejected or refused.
        incomplete: Those that lost a part of their events.
        good: SYNs that reached their destination and were answered.
        failed: SYNs that did not.
        causes: SYNs by cause, `not known` among them.
        syn_ack: Times from the SYN to the SYN-ACK.
        whole: Times from the first probe to the last.
        ways: Times between two places, by (from, to).
        newest: The newest packets that reached their destination, or of which that is not known.
        failures: The newest ones that did not.
    """

    def __init__(self) -> None:
        self.owner = ""
        self._has_other_owners = False
        self.packets = self.drops = self.incomplete = self.good = self.failed = 0
        self.causes: Counter[str] = Counter()
        self.syn_ack, self.whole = Distribution(), Distribution()
        self.ways: LruDict[tuple[str, str], Distribution] = LruDict(MOST_WAYS, "ways of a row of top")
        self.newest: deque[Packet] = deque(maxlen=MOST_PACKETS)
        self.failures: deque[Packet] = deque(maxlen=MOST_FAILURES)

    @property
    def unsettled(self) -> int:
        """SYNs of which the cause is not known."""
        return self.causes[NOT_KNOWN]

    @property
    def syns(self) -> int:
        """SYNs that have their cause."""
        return self.good + self.failed + self.unsettled

    def add_owner(self, owner: str) -> None:
        """Notes the owner of a packet's rule or address. An owner that changes is never hidden behind the first one."""
        if self._has_other_owners or owner in (self.owner, "") or (owner == UNKNOWN and self.owner):
            return
        self._has_other_owners = self.owner not in ("", UNKNOWN)
        self.owner = f"{self.owner}, and others" if self._has_other_owners else owner

    def add(self, packet: Packet, legs: list[tuple[tuple[str, str], int]], whole: int | None) -> None:
        """Counts a packet.

        Args:
            packet: The packet.
            legs: Times between its places, ns.
            whole: Time from the first probe to the last, ns; None = it met only one.
        """
        self.packets += 1
        self.drops += packet.outcome in BAD
        self.incomplete += not packet.complete
        (self.failures if packet.outcome in BAD else self.newest).append(packet)
        if whole is not None:
            self.whole.add(whole)
        for way, ns in legs:
            times = self.ways.get(way)
            if times is None:
                times = self.ways[way] = Distribution()
            times.add(ns)

    def add_syn(self, verdict: HandshakeVerdict) -> None:
        """Counts a SYN that has its cause."""
        cause = verdict.cause
        self.causes[cause.name] += 1
        self.good += cause.good
        self.failed += not cause.good and cause.name != NOT_KNOWN
        attempt = verdict.attempt
        answers = [hop_time(p, 0) for p in attempt.synacks if p.hops] if attempt else []
        if attempt and answers:
            self.syn_ack.add(max(0, min(answers) - attempt.began))

    def merge(self, other: Row) -> None:
        """Counts all of another row."""
        self.packets, self.drops = self.packets + other.packets, self.drops + other.drops
        self.incomplete += other.incomplete
        self.good, self.failed = self.good + other.good, self.failed + other.failed
        self.causes.update(other.causes)
        self.syn_ack.merge(other.syn_ack)
        self.whole.merge(other.whole)
        self.newest.extend(other.newest)
        self.failures.extend(other.failures)
        for way, times in other.ways.items():
            self.ways.setdefault(way, Distribution()).merge(times)


def merged(rows: list[Row]) -> Row:
    """One row with the figures of all of them."""
    whole = Row()
    for row in rows:
        whole.merge(row)
    return whole
