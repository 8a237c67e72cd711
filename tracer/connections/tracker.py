# SPDX-License-Identifier: Apache-2.0
"""Joins packets into connections, and says when a connection's timeline is to be told.

index.py says to which timeline a packet belongs. A SYN with another sequence number begins a new one. A packet that is seen
again in a namespace where it has not been, out of a tunnel, is the same step going on.

What is kept is bounded. A timeline keeps its steps until they are told, and of many only the first and the last; when there are
too many steps or timelines, those that have been quiet longest are told and forgotten. Both are said.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass, field
from itertools import islice

from tracer.connections import entries
from tracer.connections.index import ConnectionIndex, identity_of
from tracer.connections.retransmissions import Retransmissions
from tracer.model.packet import Packet
from tracer.model.timeline import ConnectionKey, Timeline, TimelineEntry

MOST_TIMELINES = 100_000
MOST_STEPS = 200_000
"""Steps of all timelines together: some 120 MB."""
FIRST_STEPS, LAST_STEPS = 24, 24
"""Steps kept of a timeline; those between are counted."""
QUIET_NS = 5_000_000_000
"""A connection that says nothing for so long is told as it is then, and goes on below later."""
GRACE_NS = 500_000_000
"""So long after its end, what comes late still belongs to a timeline."""
CHANGES_KEPT = 64
LOOKED_AT = 1000
"""So many of those that have been quiet longest are told at a time."""
THE_REST = "the rest of a packet that was told before"
STEPS_BACK = 16
"""So many steps ago a packet may have begun that is seen again out of a tunnel."""


@dataclass(slots=True)
class _OpenConnection:
    """A timeline under way. isn: of the SYN that began it. closing: the ways in which a FIN went."""

    number: int
    timeline: Timeline
    tries: Retransmissions = field(default_factory=Retransmissions)
    isn: int | None = None
    closing: str = ""


class ConnectionTracker:
    """Those of one run. wall_offset: what to add to CLOCK_MONOTONIC to get ns since the epoch."""

    def __init__(self, wall_offset: int = 0, most: int = MOST_TIMELINES, most_steps: int = MOST_STEPS) -> None:
        self._offset, self._most, self._most_steps = wall_offset, most, most_steps
        self._open: OrderedDict[int, _OpenConnection] = OrderedDict()
        self._leads = ConnectionIndex()
        self._changes: list[TimelineEntry] = []
        self._steps = 0
        self._number = 0
        self._ended: OrderedDict[int, int] = OrderedDict()
        self._untold: OrderedDict[int, None] = OrderedDict()
        self._aged: list[Timeline] = []
        self.counts: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._open)

    def feed(self, packet: Packet) -> None:
        """Takes a packet that is over."""
        one, joined = self._find(packet)
        self._open.move_to_end(one.number)
        if packet.tcp_flags == "SYN" and one.isn is None:
            one.isn, one.timeline.whole = packet.seq, True
        if packet.protocol == one.timeline.key.protocol:
            self._leads.learn(one.number, one.timeline.key, packet)
        way = self._way(one, packet)
        if self._goes_on(one, packet, way):
            return
        again = "" if packet.continues else one.tries.again(packet, way)
        remarks = (THE_REST if packet.continues else again, joined)
        step = entries.entry(packet, way, ", ".join(r for r in remarks if r))
        one.timeline.packets += 1
        one.timeline.retransmitted += bool(again)
        one.timeline.lost += step.bad
        self._append(one, step)
        self._follow_state(one, packet, way)
        while len(self._open) > self._most or self._steps > self._most_steps:
            self._age()

    def add_entry(self, key: ConnectionKey, entry: TimelineEntry, cause: str = "") -> bool:
        """Puts what happened to a conntrack entry, or a SYN's verdict, on its timeline; False when there is none. cause: of the
        verdict."""
        number = self._leads.of_entry(key)
        if number is None:
            return False
        one = self._open[number]
        if cause:
            one.timeline.cause, one.timeline.good = cause, not entry.bad
        self._append(one, entry)
        return True

    def changed(self, entry: TimelineEntry) -> None:
        """Rules or endpoints were replaced: shown in each timeline that goes on after it."""
        self._changes = [*self._changes[-CHANGES_KEPT + 1 :], entry]

    def expire(self, now: int) -> list[Timeline]:
        """Timelines to be told: of connections that have ended, that aged out, or that are quiet. now: ns, CLOCK_MONOTONIC.

        Once they are written, `written` has to hear of each."""
        told = self._aged
        self._aged = []
        for number, at in list(self._ended.items()):
            if now - at < GRACE_NS:
                break
            told.append(self._close(number, ""))
        for number in list(islice(self._untold, LOOKED_AT)):
            one = self._open[number]
            if now - one.timeline.last < QUIET_NS:
                break
            one.tries.flush()
            told.append(self._tell(one, "quiet"))
        return told

    def flush(self) -> list[Timeline]:
        """All that are still open and have something new; the run is over."""
        told = self._aged + [self._tell(self._open[number], "the run ended") for number in list(self._untold)]
        self._aged = []
        return told

    def written(self, timeline: Timeline) -> None:
        """Its steps have been told, and are not kept any longer."""
        timeline.printed += len(timeline.entries)
        if not timeline.over:
            self._steps -= len(timeline.entries)
        timeline.entries, timeline.left_out = [], 0

    def _find(self, packet: Packet) -> tuple[_OpenConnection, str]:
        """The timeline that a packet belongs to, and a remark where that is derived; a new one where there is none."""
        for number, remark in self._leads.numbers(packet):
            one = self._open[number]
            # Another connection of the same ends begins with another number.
            if not (packet.tcp_flags == "SYN" and one.isn is not None and one.isn != packet.seq):
                return one, remark
        time = packet.hops[0].time
        self._number += 1
        timeline = Timeline(identity_of(packet), time + self._offset, time, packet.endpoints)
        one = self._open[self._number] = _OpenConnection(self._number, timeline)
        self.counts["timelines"] += 1
        return one, ""

    def _way(self, one: _OpenConnection, packet: Packet) -> str:
        if packet.protocol != one.timeline.key.protocol:
            return "!"
        if packet.flow:
            return "<-" if packet.flow.is_reply else "->"
        back = self._leads.has(one.number, packet.protocol, packet.endpoints.reversed)
        return "<-" if back or packet.endpoints == one.timeline.asked.reversed else "->"

    def _goes_on(self, one: _OpenConnection, packet: Packet, way: str) -> bool:
        """Whether this is the rest of a packet that was seen before: in another namespace, in another buffer."""
        steps = one.timeline.entries
        for at in range(len(steps) - 1, max(-1, len(steps) - 1 - STEPS_BACK), -1):
            if entries.continues(steps[at], packet, way):
                steps[at] = entries.extended(steps[at], packet)
                one.timeline.lost += steps[at].bad
                one.timeline.last = max(one.timeline.last, packet.hops[-1].time)
                one.tries.went_on(packet, way)
                return True
        return False

    def _append(self, one: _OpenConnection, entry: TimelineEntry) -> None:
        timeline = one.timeline
        for change in self._changes if timeline.entries or timeline.printed else ():
            if timeline.last < change.time <= entry.time:
                self._put(one, change)
        timeline.last = max(timeline.last, entry.time)
        self._put(one, entry)

    def _put(self, one: _OpenConnection, entry: TimelineEntry) -> None:
        timeline = one.timeline
        timeline.entries.append(entry)
        self._untold[one.number] = None
        self._untold.move_to_end(one.number)
        self._steps += 1
        if len(timeline.entries) > FIRST_STEPS + LAST_STEPS:
            del timeline.entries[FIRST_STEPS]
            timeline.left_out += 1
            self._steps -= 1

    def _follow_state(self, one: _OpenConnection, packet: Packet, way: str) -> None:
        if way == "!":
            if one.timeline.packets == 2:
                one.timeline.state = "refused"
            return
        if packet.protocol != "TCP":
            one.timeline.state = "answered" if way == "<-" else one.timeline.state
            return
        flags = packet.tcp_flags
        if "RST" in flags:
            one.timeline.state = "reset" if one.timeline.packets > 2 else "refused"
            self._ended.setdefault(one.number, packet.hops[-1].time)
        elif "FIN" in flags:
            if way not in one.closing:
                one.closing += way
            if len(one.closing) == 4:
                one.timeline.state = "closed"
                self._ended.setdefault(one.number, packet.hops[-1].time)

    def _age(self) -> None:
        self.counts["aged out"] += 1
        number = next(iter(self._open))
        untold = number in self._untold
        timeline = self._close(number, "aged out")
        if untold:
            self._aged.append(timeline)

    def _tell(self, one: _OpenConnection, why: str) -> Timeline:
        self._untold.pop(one.number, None)
        one.timeline.why = why
        one.timeline.entries.sort(key=lambda step: step.time)
        return one.timeline

    def _close(self, number: int, why: str) -> Timeline:
        one = self._open.pop(number)
        self._ended.pop(number, None)
        self._steps -= len(one.timeline.entries)
        self._leads.forget(number)
        one.timeline.over = True
        return self._tell(one, why)
