# SPDX-License-Identifier: Apache-2.0
"""Joins packets into connections, and decides when a connection's timeline is written.

index.py finds the timeline of a packet. A SYN with another sequence number begins a new timeline. A packet that is seen again
in a new namespace, after a tunnel, extends its existing entry. Other packets in a new namespace belong to another connection,
also when they have the same endpoints; without conntrack this is not known.

Memory is bounded. A timeline keeps its entries until they are written, and of many entries only the first and the last. When
there are too many entries or timelines, the timelines that have been idle longest are written and removed. The output shows
both.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass, field
from itertools import islice

from tracer.connections import entries
from tracer.connections.index import BY_ENDS, ConnectionIndex
from tracer.connections.retransmissions import Retransmissions
from tracer.model.connection import ConnectionKey
from tracer.model.packet import Packet
from tracer.model.timeline import Timeline, TimelineEntry
from tracer.packets.shared_packet import hop_time

MAX_TIMELINES = 100_000
MAX_ENTRIES = 200_000
"""Entries of all timelines together: about 120 MB."""
FIRST_ENTRIES, LAST_ENTRIES = 24, 24
"""Entries kept of a timeline, at its beginning and at its end; those between are only counted."""
IDLE_NS = 5_000_000_000
"""Idle time after which the timeline of an open connection is written, ns. Later packets are written as its continuation."""
GRACE_NS = 500_000_000
"""Time after the end of a connection in which late packets still belong to its timeline, ns."""
MAX_CHANGES = 64
"""Changes of rules and objects that are kept for timelines."""
MAX_IDLE_CHECKED = 1000
"""Maximum number of idle timelines that one `expire` writes, the longest idle first."""
CONTINUED = "the rest of a packet that was shown before"
MAX_ENTRIES_BACK = 16
"""Number of latest entries that are searched for the beginning of a packet that is seen again after a tunnel."""


@dataclass(slots=True)
class _OpenConnection:
    """An open connection.

    Attributes:
        number: its number in ConnectionIndex.
        isn: sequence number of the SYN that began it; None = its SYN was not seen.
        fin_directions: directions in which a FIN was sent, one after another: "->", "<-", "-><-".
    """

    number: int
    timeline: Timeline
    retransmissions: Retransmissions = field(default_factory=Retransmissions)
    isn: int | None = None
    fin_directions: str = ""


class ConnectionTracker:
    """The connections of one run.

    Args:
        wall_offset: ns to add to CLOCK_MONOTONIC to get ns since the epoch.
        max_timelines: Most open connections.
        max_entries: Most entries of all of them.
        gives_each_end: A connection is given once more when it is over, also if all of its entries were written before.
    """

    def __init__(
        self,
        wall_offset: int = 0,
        max_timelines: int = MAX_TIMELINES,
        max_entries: int = MAX_ENTRIES,
        gives_each_end: bool = False,
    ) -> None:
        self._gives_each_end = gives_each_end
        self._offset, self._max_timelines, self._max_entries = wall_offset, max_timelines, max_entries
        self._open: OrderedDict[int, _OpenConnection] = OrderedDict()
        self._index = ConnectionIndex()
        self._changes: list[TimelineEntry] = []
        self._entry_count = 0
        self._number = 0
        self._ended: OrderedDict[int, int] = OrderedDict()
        self._pending: OrderedDict[int, None] = OrderedDict()
        self._evicted: list[Timeline] = []
        self.counts: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._open)

    def feed(self, packet: Packet) -> int:
        """Takes a closed packet; returns the number of its connection."""
        connection, join_remark = self._find(packet)
        self._open.move_to_end(connection.number)
        if packet.tcp_flags == "SYN" and connection.isn is None:
            connection.isn, connection.timeline.whole = packet.seq, True
        if packet.protocol == connection.timeline.key.protocol:
            self._index.add(connection.number, packet)
        direction = self._direction(connection, packet)
        if self._extend_entry(connection, packet, direction):
            return connection.number
        resent = "" if packet.continues else connection.retransmissions.feed(packet, direction)
        remarks = (CONTINUED if packet.continues else resent, join_remark)
        entry = entries.make_entry(packet, direction, ", ".join(r for r in remarks if r))
        connection.timeline.packets += 1
        connection.timeline.retransmitted += bool(resent)
        connection.timeline.lost += entry.bad
        self._append(connection, entry)
        self._update_state(connection, packet, direction)
        while len(self._open) > self._max_timelines or self._entry_count > self._max_entries:
            self._evict_oldest()
        return connection.number

    def add_entry(self, key: ConnectionKey, entry: TimelineEntry) -> bool:
        """Adds an event of a conntrack entry to its timeline. False when there is no timeline."""
        number = self._index.find(key)
        if number is None:
            return False
        self._append(self._open[number], entry)
        return True

    def add_verdict(self, syn: Packet, entry: TimelineEntry, cause: str) -> bool:
        """Adds the verdict on a SYN to the SYN's timeline. False when there is no timeline. cause: name of the cause."""
        for number, _ in self._index.numbers(syn):
            connection = self._open[number]
            if not _is_new_connection(connection, syn):
                connection.timeline.cause, connection.timeline.good = cause, not entry.bad
                self._append(connection, entry)
                return True
        return False

    def add_change(self, entry: TimelineEntry) -> None:
        """Adds a replacement of rules or endpoints. It is shown in each timeline that has a later entry."""
        self._changes = [*self._changes[-MAX_CHANGES + 1 :], entry]

    def expire(self, now: int) -> list[Timeline]:
        """The timelines to write: of connections that have ended, were evicted, or are idle.

        The caller calls `mark_written` with each timeline after it has written it.

        Args:
            now: ns, CLOCK_MONOTONIC.
        """
        timelines = self._evicted
        self._evicted = []
        for number, ended_at in list(self._ended.items()):
            if now - ended_at < GRACE_NS:
                break
            timelines.append(self._close(number, ""))
        for number in list(islice(self._pending, MAX_IDLE_CHECKED)):
            connection = self._open[number]
            if now - connection.timeline.last < IDLE_NS:
                break
            connection.retransmissions.shrink()
            timelines.append(self._hand_out(connection, "quiet"))
        return timelines

    def flush(self) -> list[Timeline]:
        """The timelines with unwritten entries at the end of the run."""
        timelines = self._evicted + [self._hand_out(self._open[number], "the run ended") for number in list(self._pending)]
        self._evicted = []
        return timelines

    def close(self) -> list[Timeline]:
        """All connections at the end of the run, each one over, also those without unwritten entries."""
        evicted, self._evicted = self._evicted, []
        return evicted + [self._close(number, "the run ended") for number in list(self._open)]

    def mark_written(self, timeline: Timeline) -> None:
        """Removes the entries of a timeline after they were written."""
        timeline.printed += len(timeline.entries)
        if not timeline.over:
            self._entry_count -= len(timeline.entries)
        timeline.entries, timeline.left_out = [], 0

    def _find(self, packet: Packet) -> tuple[_OpenConnection, str]:
        """The connection that a packet belongs to, or a new one. With a remark where the connection is derived."""
        for number, remark in self._index.numbers(packet):
            connection = self._open[number]
            if not _is_new_connection(connection, packet):
                return connection, remark
        for number in self._index.elsewhere(packet):
            if self._is_seen_again(self._open[number], packet):
                return self._open[number], "" if packet.flow else BY_ENDS
        time = hop_time(packet, 0)
        self._number += 1
        timeline = Timeline(ConnectionKey.of(packet), time + self._offset, time, packet.endpoints, number=self._number)
        connection = self._open[self._number] = _OpenConnection(self._number, timeline)
        self.counts["timelines"] += 1
        return connection, ""

    def _direction(self, connection: _OpenConnection, packet: Packet) -> str:
        if packet.protocol != connection.timeline.key.protocol:
            return "!"
        if packet.flow:
            return "<-" if packet.flow.is_reply else "->"
        is_reply = self._index.has(connection.number, packet.protocol, packet.endpoints.reversed)
        return "<-" if is_reply or packet.endpoints == connection.timeline.asked.reversed else "->"

    def _is_seen_again(self, connection: _OpenConnection, packet: Packet) -> bool:
        """Whether a packet in a namespace that is new to this connection is a packet of it, seen again after a tunnel.

        Of a packet that conntrack does not know, only the addresses are known; its entry has a remark.
        """
        if not packet.flow:
            return not _is_new_connection(connection, packet)
        if packet.tcp_flags == "SYN":
            return connection.isn == packet.seq
        return _entry_before(connection, packet, self._direction(connection, packet)) is not None

    @staticmethod
    def _extend_entry(connection: _OpenConnection, packet: Packet, direction: str) -> bool:
        """Extends the entry of a packet that is seen again, in another namespace and buffer. False when there is none."""
        at = _entry_before(connection, packet, direction)
        if at is None:
            return False
        entry = connection.timeline.entries[at] = entries.extend(connection.timeline.entries[at], packet)
        connection.timeline.lost += entry.bad
        connection.timeline.last = max(connection.timeline.last, hop_time(packet, -1))
        connection.retransmissions.update(packet, direction)
        return True

    def _append(self, connection: _OpenConnection, entry: TimelineEntry) -> None:
        timeline = connection.timeline
        for change in self._changes if timeline.entries or timeline.printed else ():
            if timeline.last < change.time <= entry.time:
                self._store(connection, change)
        timeline.last = max(timeline.last, entry.time)
        self._store(connection, entry)

    def _store(self, connection: _OpenConnection, entry: TimelineEntry) -> None:
        timeline = connection.timeline
        timeline.entries.append(entry)
        self._pending[connection.number] = None
        self._pending.move_to_end(connection.number)
        self._entry_count += 1
        if len(timeline.entries) > FIRST_ENTRIES + LAST_ENTRIES:
            del timeline.entries[FIRST_ENTRIES]
            timeline.left_out += 1
            self._entry_count -= 1

    def _update_state(self, connection: _OpenConnection, packet: Packet, direction: str) -> None:
        if direction == "!":
            if connection.timeline.packets == 2:
                connection.timeline.state = "refused"
            return
        if packet.protocol != "TCP":
            connection.timeline.state = "answered" if direction == "<-" else connection.timeline.state
            return
        flags = packet.tcp_flags
        if "RST" in flags:
            connection.timeline.state = "reset" if connection.timeline.packets > 2 else "refused"
            self._ended.setdefault(connection.number, hop_time(packet, -1))
        elif "FIN" in flags:
            if direction not in connection.fin_directions:
                connection.fin_directions += direction
            if len(connection.fin_directions) == 4:
                connection.timeline.state = "closed"
                self._ended.setdefault(connection.number, hop_time(packet, -1))

    def _evict_oldest(self) -> None:
        self.counts["aged out"] += 1
        number = next(iter(self._open))
        is_pending = number in self._pending
        timeline = self._close(number, "aged out")
        if is_pending or self._gives_each_end:
            self._evicted.append(timeline)

    def _hand_out(self, connection: _OpenConnection, reason: str) -> Timeline:
        self._pending.pop(connection.number, None)
        connection.timeline.why = reason
        connection.timeline.entries.sort(key=lambda step: step.time)
        return connection.timeline

    def _close(self, number: int, reason: str) -> Timeline:
        connection = self._open.pop(number)
        self._ended.pop(number, None)
        self._entry_count -= len(connection.timeline.entries)
        self._index.remove(number)
        connection.timeline.over = True
        return self._hand_out(connection, reason)


def _is_new_connection(connection: _OpenConnection, packet: Packet) -> bool:
    """Whether a SYN begins another connection of the same endpoints: with another sequence number."""
    return packet.tcp_flags == "SYN" and connection.isn is not None and connection.isn != packet.seq


def _entry_before(connection: _OpenConnection, packet: Packet, direction: str) -> int | None:
    """The index of the latest entry that this packet continues in another namespace and buffer; None when there is none."""
    found = connection.timeline.entries
    back = range(len(found) - 1, max(-1, len(found) - 1 - MAX_ENTRIES_BACK), -1)
    return next((at for at in back if entries.continues(found[at], packet, direction)), None)
