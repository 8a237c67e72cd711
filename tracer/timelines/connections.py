"""Joins packets into connections, and says when a connection's timeline is to be told.

A connection is known by conntrack's identity: original tuple, zone, namespace. Packets that conntrack does not know, and what
several namespaces track each for itself, are joined by their ends: every pair of ends that a packet of the connection had,
before and after each translation, leads to the timeline. A SYN with another sequence number begins a new one.

What is kept is bounded. A timeline keeps its first and its last steps; when there are too many steps or timelines, those that
have been quiet longest are told and forgotten. Both are said.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass, field
from itertools import islice

from tracer.model import Endpoints, Packet
from tracer.syns.attempts import ends_of
from tracer.timelines import stages
from tracer.timelines.model import Identity, Step, Timeline

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
LARGE = 1200
"""Bytes: a segment that may be too large for a tunnel on its way."""
CONNECTION_PROTOCOLS = ("TCP", "UDP", "SCTP", "DCCP", "UDPLITE")

Alias = tuple[str, Endpoints]


@dataclass
class _Open:
    """A timeline under way, and what leads to it. tries: how often each segment was sent, and how the first try ended."""

    number: int
    timeline: Timeline
    aliases: set[Alias] = field(default_factory=set)
    identities: set[Identity] = field(default_factory=set)
    tries: dict[tuple[str, int], list[str]] = field(default_factory=dict)
    isn: int | None = None
    closing: set[str] = field(default_factory=set)


class Connections:
    """Those of one run. wall_offset: what to add to CLOCK_MONOTONIC to get ns since the epoch."""

    def __init__(self, wall_offset: int = 0, most: int = MOST_TIMELINES, most_steps: int = MOST_STEPS) -> None:
        self._offset, self._most, self._most_steps = wall_offset, most, most_steps
        self._open: OrderedDict[int, _Open] = OrderedDict()
        self._by_identity: dict[Identity, int] = {}
        self._by_alias: dict[Alias, int] = {}
        self._changes: list[Step] = []
        self._steps = 0
        self._number = 0
        self._ended: OrderedDict[int, int] = OrderedDict()
        self._untold: OrderedDict[int, None] = OrderedDict()
        self._aged: list[Timeline] = []
        self.counts: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._open)

    def add(self, packet: Packet) -> None:
        """Takes a packet that is over."""
        number, joined = self._find(packet)
        if number is None:
            number = self._begin(packet)
        self._open.move_to_end(number)
        one = self._open[number]
        self._know(number, one, packet)
        way = self._way(one, packet)
        remark = self._again(one, packet, way)
        if joined:
            remark = ", ".join(r for r in (remark, joined) if r)
        one.timeline.packets += 1
        self._append(one, stages.step(packet, way, remark))
        self._follow_state(number, one, packet, way)
        while len(self._open) > self._most or self._steps > self._most_steps:
            self._age()

    def note(self, identity: Identity, step: Step) -> bool:
        """Puts what happened to a conntrack entry, or a SYN's verdict, on its timeline; False when there is none."""
        number = self._by_identity.get(identity)
        if number is None:
            number = self._by_alias.get((identity.protocol, identity.orig))
        if number is None:
            return False
        self._append(self._open[number], step)
        return True

    def changed(self, step: Step) -> None:
        """Rules or endpoints were replaced: shown in each timeline that goes on after it."""
        self._changes = [*self._changes[-CHANGES_KEPT + 1 :], step]

    def over(self, now: int) -> list[Timeline]:
        """Timelines to be told: of connections that have ended, that aged out, or that are quiet. now: ns, CLOCK_MONOTONIC."""
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
            told.append(self._tell(one, "quiet"))
        return told

    def rest(self) -> list[Timeline]:
        """All that are still open and have something new; the run is over."""
        told = self._aged + [self._tell(self._open[number], "the run ended") for number in list(self._untold)]
        self._aged = []
        return told

    def _find(self, packet: Packet) -> tuple[int | None, str]:
        """The timeline that a packet belongs to, and a remark where that is derived."""
        flow = packet.flow
        if flow and packet.protocol.startswith("ICMP") and flow.state == "RELATED":
            for protocol in CONNECTION_PROTOCOLS:
                number = self._by_identity.get(Identity(protocol, flow.orig, flow.zone, flow.netns))
                if number is not None:
                    return number, ""
            return None, ""
        if flow:
            number = self._by_identity.get(identity_of(packet))
            if number is not None and not self._anew(number, packet):
                return number, ""
        for ends in (packet.endpoints, *ends_of(packet)):
            number = self._by_alias.get((packet.protocol, ends))
            if number is None:
                number = self._by_alias.get((packet.protocol, ends.reversed))
            if number is not None and not self._anew(number, packet):
                return number, "" if flow else "joined by its addresses"
        return None, ""

    def _anew(self, number: int, packet: Packet) -> bool:
        """Whether a SYN begins another connection of the same ends."""
        isn = self._open[number].isn
        return packet.tcp_flags == "SYN" and isn is not None and isn != packet.seq

    def _begin(self, packet: Packet) -> int:
        time = packet.hops[0].time
        self._number += 1
        self._open[self._number] = _Open(
            self._number, Timeline(identity_of(packet), time + self._offset, time, packet.endpoints)
        )
        self.counts["timelines"] += 1
        return self._number

    def _know(self, number: int, one: _Open, packet: Packet) -> None:
        """What leads to this timeline from now on."""
        if packet.tcp_flags == "SYN" and one.isn is None:
            one.isn = packet.seq
        if packet.protocol != one.timeline.identity.protocol:
            return
        for identity in (one.timeline.identity, identity_of(packet)):
            one.identities.add(identity)
            self._by_identity[identity] = number
        for ends in ends_of(packet):
            alias = packet.protocol, ends
            if alias not in one.aliases and (packet.protocol, ends.reversed) not in one.aliases:
                one.aliases.add(alias)
                self._by_alias[alias] = number

    def _way(self, one: _Open, packet: Packet) -> str:
        if packet.protocol != one.timeline.identity.protocol:
            return "!"
        if packet.flow:
            return "<-" if packet.flow.is_reply else "->"
        mine = {ends for _, ends in one.aliases}
        return "<-" if packet.endpoints.reversed in mine or packet.endpoints == one.timeline.asked.reversed else "->"

    def _again(self, one: _Open, packet: Packet, way: str) -> str:
        """Whether a segment was sent before, and what became of it then."""
        if packet.protocol != "TCP" or not _occupies(packet):
            return ""
        tries = one.tries.setdefault((way, packet.seq), [])
        tries.append(packet.verdict)
        if len(one.tries) > 2 * LAST_STEPS:
            del one.tries[next(iter(one.tries))]
        if len(tries) < 2:
            return ""
        remark = f"sent again ({len(tries)}. try), the first ended: {tries[0]}"
        # Small segments came through, or there would be no data yet.
        lost = len(tries) > 2 and packet.length > LARGE
        return f"{remark}; perhaps an MTU black hole: {packet.length} B do not get through, less does" if lost else remark

    def _append(self, one: _Open, step: Step) -> None:
        timeline = one.timeline
        for change in self._changes if timeline.steps else ():
            if timeline.last < change.time <= step.time:
                self._put(one, change)
        timeline.last = max(timeline.last, step.time)
        self._put(one, step)

    def _put(self, one: _Open, step: Step) -> None:
        timeline = one.timeline
        timeline.steps.append(step)
        self._untold[one.number] = None
        self._untold.move_to_end(one.number)
        self._steps += 1
        if len(timeline.steps) > FIRST_STEPS + LAST_STEPS:
            del timeline.steps[FIRST_STEPS]
            timeline.left_out += 1
            self._steps -= 1

    def _follow_state(self, number: int, one: _Open, packet: Packet, way: str) -> None:
        if way == "!":
            if one.timeline.packets == 2:
                one.timeline.state = "refused"
            return
        flags = packet.tcp_flags
        if "RST" in flags:
            one.timeline.state = "reset" if one.timeline.packets > 2 else "refused"
            self._ended.setdefault(number, packet.hops[-1].time)
        elif "FIN" in flags:
            one.closing.add(way)
            if len(one.closing) == 2:
                one.timeline.state = "closed"
                self._ended.setdefault(number, packet.hops[-1].time)

    def _age(self) -> None:
        self.counts["aged out"] += 1
        number = next(iter(self._open))
        untold = number in self._untold
        timeline = self._close(number, "aged out")
        if untold:
            self._aged.append(timeline)

    def _tell(self, one: _Open, why: str) -> Timeline:
        self._untold.pop(one.number, None)
        one.timeline.why = why
        return one.timeline

    def _close(self, number: int, why: str) -> Timeline:
        one = self._open.pop(number)
        self._ended.pop(number, None)
        self._steps -= len(one.timeline.steps)
        for alias in one.aliases:
            if self._by_alias.get(alias) == number:
                del self._by_alias[alias]
        for identity in one.identities:
            if self._by_identity.get(identity) == number:
                del self._by_identity[identity]
        return self._tell(one, why)


def identity_of(packet: Packet) -> Identity:
    """By conntrack where it knows the packet, else by its own ends."""
    flow = packet.flow
    if not flow:
        return Identity(packet.protocol, packet.endpoints)
    return Identity(packet.protocol, flow.orig, flow.zone, flow.netns)


def _occupies(packet: Packet) -> bool:
    """Whether a segment takes up sequence numbers: only such a one is sent again."""
    return "SYN" in packet.tcp_flags or "FIN" in packet.tcp_flags or "PSH" in packet.tcp_flags or packet.length > 120
