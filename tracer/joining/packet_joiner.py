# SPDX-License-Identifier: Apache-2.0
"""Finds the views that are one packet. What more than one assignment can explain is ambiguous, never guessed.

A view has up to two ends: its arrival at the node and its departure from it. Ends with the same key wait in one group until no
further end of this key can belong to them. Then the group is matched: a departure and an arrival are one packet if no other
end comes into question within the error of the clocks and the longest time on the way. TCP ends without a match wait once more,
for segments that were merged or divided on the way, and for a SYN of which the addresses were translated on the way.

Nothing depends on the order of arrivals, because a network may reorder, duplicate and lose packets at the same time.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Sequence
from operator import attrgetter

from tracer.joining import wire_headers
from tracer.joining.join_groups import MAX_ENDS, Group, Match, SegmentGroup, SynGroup, WaitingView, WireEnd
from tracer.joining.loss_periods import LossPeriods
from tracer.joining.pair_clocks import PairClocks
from tracer.model.joined_packet import Certainty, JoinedPacket, JoinKey, JoinLink, NodeView
from tracer.util.evictions import evictions
from tracer.util.frozen import evolve

TRANSIT_NS = 500_000_000
"""Longest time that a packet is believed to be on the way between two nodes, ns. One that takes longer is not joined."""
MAX_WAITING = 1 << 16
"""Most views of one node that wait for those of other nodes."""
MAX_VIEWS = 64
"""Most views of one packet: a segment of 64 kB is divided into about 45."""
_time_of = attrgetter("time")


class PacketJoiner:
    """Joins views.

    Args:
        transit_ns: Longest time of a packet between two nodes, ns.
        max_waiting: Most views of one node that wait.

    Attributes:
        clocks: The clocks of the nodes.
        evicted: Number of views that were given up before their views on other nodes could come.
        late: Number of views that came after the horizon had passed them.
    """

    def __init__(self, transit_ns: int = TRANSIT_NS, max_waiting: int = MAX_WAITING) -> None:
        self.clocks = PairClocks()
        self.evicted = self.late = 0
        self._transit, self._max_waiting = transit_ns, max_waiting
        self._groups: dict[Hashable, Group] = {}
        self._due: list[tuple[int, int, Group]] = []
        self._order: list[tuple[int, int, WaitingView]] = []
        self._waiting: dict[str, int] = {}
        self._losses, self._given_up = LossPeriods(), LossPeriods()
        self._ready: list[JoinedPacket] = []
        self._number = self._error = 0
        self._horizon: int | None = None

    def feed(self, view: NodeView) -> None:
        """A node has seen a packet. Views may come in any order up to the horizon."""
        node, packet = view.node, view.packet
        self.clocks.set_offset(node, view.offset, view.error)
        shift = view.shift
        time = packet.time + shift
        entry = WaitingView(view, time)
        self._number += 1
        heapq.heappush(self._order, (time, self._number, entry))
        self._waiting[node] = self._waiting.get(node, 0) + 1
        if self._horizon is not None and time < self._horizon:
            self.late += 1
            self._losses.add(node, time - 1, time + 1)
        headers = wire_headers.headers_of(packet)
        if headers.arrival:
            self._add(WireEnd(entry, headers.arrival, False), shift)
        if headers.departure:
            self._add(WireEnd(entry, headers.departure, True), shift)
        if self._waiting[node] > self._max_waiting:
            self._give_up(node)

    def note_loss(self, node: str, since: int, until: int) -> None:
        """A node has lost packets between two times, ns, of the reference clock."""
        self._losses.add(node, since, until)

    def take(self, horizon: int) -> list[JoinedPacket]:
        """Packets that are settled, in the order of their times.

        Args:
            horizon: All views up to this time have been fed, ns, of the reference clock.
        """
        self._horizon = horizon if self._horizon is None else max(self._horizon, horizon)
        self._error = self.clocks.error
        self._settle(horizon)
        oldest = horizon - 4 * (self._transit + 2 * self._error)
        for periods in (self._losses, self._given_up):
            if periods:
                periods.forget(oldest)
        while self._order:
            time, _, entry = self._order[0]
            if not entry.is_emitted:
                if time > horizon or not self._is_settled(entry):
                    break
                self._emit(entry)
            heapq.heappop(self._order)
        ready, self._ready = self._ready, []
        return ready

    def close(self) -> list[JoinedPacket]:
        """All packets that still wait: no view comes any more."""
        return self.take(1 << 62)

    @property
    def waiting(self) -> int:
        """Number of views that wait."""
        return sum(self._waiting.values())

    # ---- groups ----

    def _add(self, end: WireEnd, shift: int) -> None:
        key = end.key
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = Group(key)
        self._join_group(group, end, end.time + shift)

    def _join_group(self, group: Group, end: WireEnd, time: int) -> None:
        """Adds an end to a group. time: when the group may be closed, less the time on the way, ns, of the reference clock."""
        if len(group.ends) >= MAX_ENDS:
            group.is_overfull = True
            self._close_group(group)
            evictions.add("packets with equal headers")
            group = self._groups[group.key] = type(group)(group.key, is_overfull=True)
        end.entry.open.append(group)
        group.ends.append(end)
        if time > group.newest:
            group.newest = time
        if not group.is_queued:
            group.is_queued = True
            self._number += 1
            heapq.heappush(self._due, (time, self._number, group))

    def _settle(self, horizon: int) -> None:
        """Matches the groups to which no end can be added any more."""
        wait = self._transit + 2 * self._error
        while self._due and self._due[0][0] + wait <= horizon:
            time, _, group = heapq.heappop(self._due)
            if group.is_closed:
                continue
            if group.newest > time:
                self._number += 1
                heapq.heappush(self._due, (group.newest, self._number, group))
            else:
                self._close_group(group)

    def _close_group(self, group: Group, is_whole: bool = True) -> None:
        """Matches a group. is_whole: False = ends of it may still come."""
        group.is_closed = True
        del self._groups[group.key]
        for match in group.matches(self.clocks, self._transit):
            self._note(match, is_whole)
        for end in group.ends:
            entry = end.entry
            entry.open.remove(group)
            if is_whole and not end.is_matched and type(group) is Group:
                for key in end.second_keys():
                    self._add_second(key, end)
            elif not is_whole and end.is_departure:
                time = end.time + entry.view.shift
                self._given_up.add(entry.view.node, time, time)

    def _add_second(self, key: Hashable, end: WireEnd) -> None:
        """An end without a match waits for another kind of match."""
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = SynGroup(key) if end.is_syn else SegmentGroup(key)
        # Its partner may be so much younger, and then comes out of its own group so much later.
        self._join_group(group, end, end.time + end.entry.view.shift + self._transit + 2 * self._error)

    def _note(self, match: Match, is_whole: bool) -> None:
        """Notes a match at its views. is_whole: False = another end with the key may come."""
        earlier, later, key, certainty, _ = match
        if earlier and later:
            if self._is_doubtful(earlier, later, is_whole) or self._has_too_many(earlier, later):
                self._note(Match(earlier, None, key, Certainty.AMBIGUOUS), is_whole)
                self._note(Match(None, later, key, Certainty.AMBIGUOUS), is_whole)
                return
            if certainty is Certainty.OBSERVED and key is JoinKey.HEADER and is_whole:
                self.clocks.note_order(earlier.entry.view.node, earlier.time, later.entry.view.node, later.time)
            elif not is_whole:
                match = match._replace(certainty=Certainty.DERIVED)
        for end in (earlier, later):
            if end:
                end.is_matched = True
                end.entry.matches.append(match)

    def _is_doubtful(self, earlier: WireEnd, later: WireEnd, is_whole: bool) -> bool:
        """Whether another packet with the same key may be missing where this one left."""
        if not is_whole and not earlier.is_sure:
            return True
        node, view = earlier.entry.view.node, later.entry.view
        until = later.time + view.shift + self._error
        since = until - self._transit - 2 * self._error
        if self._given_up and self._given_up.concerns(node, since, until):
            return True
        return bool(self._losses) and not earlier.is_sure and self._losses.concerns(node, since, until)

    @staticmethod
    def _has_too_many(earlier: WireEnd, later: WireEnd) -> bool:
        """Whether a packet would have too many views with this match."""
        if not earlier.entry.matches and not later.entry.matches:
            return False
        return len(_component(earlier.entry)) + len(_component(later.entry)) > MAX_VIEWS

    # ---- emission ----

    def _is_settled(self, entry: WaitingView) -> bool:
        if not entry.matches:
            return not entry.open
        return all(not each.open for each in _component(entry))

    def _give_up(self, node: str) -> None:
        """Gives up the oldest view that waits, and other views of its packet."""
        while self._order and self._waiting[node] > self._max_waiting:
            _, _, entry = heapq.heappop(self._order)
            if entry.is_emitted:
                continue
            entry.is_given_up = True
            while pending := [group for each in _component(entry) for group in each.open]:
                self._close_group(pending[0], is_whole=False)
            self.evicted += 1
            evictions.add("views waiting for those of other nodes")
            self._emit(entry)

    def _emit(self, entry: WaitingView) -> None:
        if not entry.matches:
            entry.is_emitted = True
            self._waiting[entry.view.node] -= 1
            self._ready.append(JoinedPacket((entry.view,), (), not entry.is_given_up))
            return
        entries = _component(entry)
        for each in entries:
            each.is_emitted = True
            self._waiting[each.view.node] -= 1
        ordered = _in_order(entries)
        places = {id(each): at for at, each in enumerate(ordered)}
        links: list[JoinLink] = []
        for at, each in enumerate(ordered):
            for match in each.matches:
                if match.later and match.later.entry is each:
                    links.append(self._join_link(match, places.get(id(match.earlier.entry)) if match.earlier else None, at))
                elif match.later is None:
                    links.append(JoinLink(at, None, match.key, match.certainty, match.candidates))
        views = tuple(each.view for each in ordered)
        self._ready.append(JoinedPacket(views, tuple(links), not any(each.is_given_up for each in ordered)))

    def _join_link(self, match: Match, earlier: int | None, later: int) -> JoinLink:
        link = JoinLink(earlier, later, match.key, match.certainty, match.candidates)
        if not match.earlier or not match.later:
            return link
        first, second = match.earlier, match.later
        apart = self.clocks.difference(first.entry.view.node, second.entry.view.node, first.time)
        if not apart.is_known:
            return link
        elapsed = second.time - first.time
        # It arrived after it left, so a negative delay is an error of the clocks.
        longest, shortest = max(0, elapsed - apart.low), max(0, elapsed - apart.high)
        return evolve(link, delay=(longest + shortest) // 2, error=(longest - shortest + 1) // 2)


def _component(entry: WaitingView) -> list[WaitingView]:
    """The entries of one packet."""
    if not entry.matches:
        return [entry]
    found, at = {id(entry): entry}, 0
    entries = [entry]
    while at < len(entries):
        for match in entries[at].matches:
            for end in (match.earlier, match.later):
                if end and id(end.entry) not in found:
                    found[id(end.entry)] = end.entry
                    entries.append(end.entry)
        at += 1
    return entries


def _in_order(entries: Sequence[WaitingView]) -> list[WaitingView]:
    """The entries in the order in which the packet passed them; those that passed at the same time by their clocks."""
    if len(entries) == 1:
        return list(entries)
    before: dict[int, int] = {id(each): 0 for each in entries}
    following: dict[int, list[WaitingView]] = {id(each): [] for each in entries}
    for each in entries:
        for match in each.matches:
            if match.earlier and match.later and match.later.entry is each:
                before[id(each)] += 1
                following[id(match.earlier.entry)].append(each)
    free = sorted((each for each in entries if not before[id(each)]), key=_time_of)
    ordered: list[WaitingView] = []
    while free:
        each = free.pop(0)
        ordered.append(each)
        for other in following[id(each)]:
            before[id(other)] -= 1
            if not before[id(other)]:
                free.append(other)
        free.sort(key=_time_of)
    # Matches in a circle: only possible if clocks were changed meanwhile.
    return ordered if len(ordered) == len(entries) else sorted(entries, key=_time_of)
