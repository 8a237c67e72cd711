# SPDX-License-Identifier: Apache-2.0
"""The figures of one row of `top`, in one interval."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tracer.analysis.durations import Distribution
from tracer.analysis.top.dimensions import UNKNOWN
from tracer.model.handshake import HandshakeVerdict
from tracer.model.joined_packet import JoinedPacket, NodeView, ShownPacket
from tracer.model.packet import Outcome, Packet
from tracer.packets.outcome import BAD
from tracer.packets.shared_packet import hop_time
from tracer.util.lru_dict import LruDict

MOST_WAYS = 32
"""Number of ways between two places of which a row keeps the times."""
MOST_PACKETS = 16
"""Number of the newest packets that a row keeps, to be looked at."""
MOST_FAILURES = 8
"""Number of the newest packets that failed, which a row keeps beside them."""
MOST_CAUSES = 100
"""Number of causes of SYNs that a row counts by name: there are about 30, and another node may send any."""
OTHER_CAUSES = "other"
NOT_KNOWN = "not known"
"""Cause of a SYN of which nothing is known: neither a success nor a failure."""


class RowWay(NamedTuple):
    """The way between two places of a packet's path. node: where both are; "" = the only node of the run."""

    before: str
    after: str
    node: str = ""

    @property
    def text(self) -> str:
        return f"{self.node}: {self.before} > {self.after}" if self.node else f"{self.before} > {self.after}"


class Row:
    """Counts the packets and the SYNs of one row.

    Attributes:
        owner: Owner of the rule or of the address; UNKNOWN = not known; "" = the dimension has no owners.
        packets: Number of packets.
        drops: Those that did not reach their destination: dropped, rejected or refused.
        incomplete: Those that lost a part of their events.
        doubtful: Those of several nodes of which another one may be a part, which was then counted as a packet of its own.
        good: SYNs that reached their destination and were answered.
        failed: SYNs that did not.
        causes: SYNs by cause, `not known` among them.
        syn_ack: Times from the SYN to the SYN-ACK.
        whole: Times from the first probe to the last one on the same node.
        ways: Times between two places of a node.
        newest: The newest packets that reached their destination, or of which that is not known.
        failures: The newest ones that did not.
    """

    def __init__(self) -> None:
        self.owner = ""
        self._has_other_owners = False
        self.packets = self.drops = self.incomplete = self.doubtful = self.good = self.failed = 0
        self.causes: Counter[str] = Counter()
        self.syn_ack, self.whole = Distribution(), Distribution()
        self.ways: LruDict[RowWay, Distribution] = LruDict(MOST_WAYS, "ways of a row of top")
        self.newest: deque[ShownPacket] = deque(maxlen=MOST_PACKETS)
        self.failures: deque[ShownPacket] = deque(maxlen=MOST_FAILURES)

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
        self._count(packet, packet.outcome, packet.complete)
        if whole is not None:
            self.whole.add(whole)
        self.add_ways("", legs)

    def add_joined(self, joined: JoinedPacket, views: Sequence[NodeView]) -> None:
        """Counts a packet of several nodes, once. Its times are those of each node, and are added by `add_ways`.

        Args:
            joined: The packet.
            views: Its views that count: all of them, or those of the node of this row.
        """
        ended = next((view.packet.outcome for view in views if view.packet.outcome in BAD), views[-1].packet.outcome)
        self._count(joined, ended, all(view.packet.complete for view in views))
        self.doubtful += joined.is_doubtful

    def _count(self, shown: ShownPacket, outcome: Outcome, is_complete: bool) -> None:
        is_bad = outcome in BAD
        self.packets += 1
        self.drops += is_bad
        self.incomplete += not is_complete
        (self.failures if is_bad else self.newest).append(shown)

    def add_ways(self, node: str, legs: Iterable[tuple[tuple[str, str], int]]) -> None:
        """Counts the times between the places of a packet on a node, ns. node: "" = the only one of the run."""
        for (before, after), ns in legs:
            way = RowWay(before, after, node)
            times = self.ways.get(way)
            if times is None:
                times = self.ways[way] = Distribution()
            times.add(ns)

    def add_syn(self, verdict: HandshakeVerdict) -> None:
        """Counts a SYN that has its cause."""
        cause = verdict.cause
        self._count_cause(cause.name, 1)
        self.good += cause.good
        self.failed += not cause.good and cause.name != NOT_KNOWN
        attempt = verdict.attempt
        answers = [hop_time(p, 0) for p in attempt.synacks if p.hops] if attempt else []
        if attempt and answers:
            self.syn_ack.add(max(0, min(answers) - attempt.began))
        elif attempt and verdict.after and cause.good:
            self.syn_ack.add(verdict.after)  # of another node: it sent the time, not the answers

    def _count_cause(self, name: str, number: int) -> None:
        is_listed = name in self.causes or len(self.causes) < MOST_CAUSES
        self.causes[name if is_listed else OTHER_CAUSES] += number

    def merge(self, other: Row) -> None:
        """Counts all of another row."""
        self.packets, self.drops = self.packets + other.packets, self.drops + other.drops
        self.incomplete, self.doubtful = self.incomplete + other.incomplete, self.doubtful + other.doubtful
        self.good, self.failed = self.good + other.good, self.failed + other.failed
        for name, number in other.causes.items():
            self._count_cause(name, number)
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
