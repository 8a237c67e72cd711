# SPDX-License-Identifier: Apache-2.0
"""Rounds of random rules and packets, and the comparison of the kernel's account with the tracer's.

Both accounts are lists of places, (chain, number), by what identifies a packet in a table: a packet has a header of its own, so
its header, table and interfaces do, and all runs of that table by that packet are compared as one list. Packets are sent one
after another without waiting for what becomes of them.

The kernel sends by itself, too, and at any time: errors about neighbour discovery that a rule rejected, handshakes it repeats.
So a round begins and ends where both accounts had nothing new for a while. The tracer's is read before the kernel's and after
it, so everything that the kernel says must be in it; what only the tracer says must lie outside the time between the two.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol

from tests.kernel.truth.edges import Places, by_hook, may_be
from tests.kernel.truth.packets import Sender
from tracer.events import record
from tracer.events.record import Event, Kind
from tracer.kernel.session import Session
from tracer.model.filter import Filter
from tracer.model.rule import RuleTrace
from tracer.node.namespaces import Namespaces
from tracer.packets.header_tracker import complete_events
from tracer.rules.live_resolver import legacy_rules
from tracer.rules.rule_resolver import RuleResolver

Key = tuple[object, ...]
Account = dict[Key, Places]
EVERYTHING, NOTHING = Filter(), Filter(ports=(1,))
AT_ONCE = 2
"""Packets sent before what the kernel tells of them is taken: its log holds so many lines, and no more."""
QUIET_SECONDS, QUIET_WITHIN = 0.3, 5
"""A round begins and ends where nothing came for so long; that is waited for so many seconds."""
RULES_SECONDS = 60
REPORT_EVERY = 250
"""Packets: a long run says how far it is."""


class Truth(Protocol):
    """One back end. overruns: how often what the kernel told was not taken in time."""

    overruns: int

    def prepare(self) -> None:
        """Loads what must be there when the probes are attached, and makes the kernel tell its trace."""

    def restore(self, dice: random.Random) -> None:
        """Puts random rules in place of all others, in the namespaces that are looked at."""

    def replacing(self, dice: random.Random) -> AbstractContextManager[None]:
        """Within the block some rules may be replaced again and again."""

    def netns(self) -> frozenset[int]:
        """The namespaces whose rules are compared."""

    def collect(self) -> bool:
        """Takes what the kernel has told since the last call. Whether there was anything."""

    def account(self) -> Account:
        """What the kernel told since this was last called. A policy is number 0."""

    def visited(self, e: Event, trace: RuleTrace) -> tuple[Key, Places] | None:
        """The same of one event with its walk; None when the kernel tells nothing of it."""


@dataclass
class Result:
    """packets: sent. rules: places compared. hotdrop: walks that ended in a match which threw the packet away. undecided: walks
    of which it was said that they are not known, by reason."""

    packets: int = 0
    rules: int = 0
    mismatches: int = 0
    lost: int = 0
    hotdrop: int = 0
    undecided: Counter[str] = field(default_factory=Counter)
    evidence: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        seen = " ".join(f"{k}={n}" for k, n in sorted(self.evidence.items()))
        told = f"packets={self.packets} rules={self.rules} {seen} hotdrop={self.hotdrop} lost={self.lost}"
        return f"{told} undecided={self.undecided.total()} mismatches={self.mismatches}"


def rounds(truth: Truth, session: Session, count: int, seed: int, each: int = 60) -> Result:
    """Sends `count` packets, `each` through a new set of random rules."""
    dice, result, namespaces = random.Random(seed), Result(), Namespaces()
    session.drain()
    session.losses()
    hits = RuleResolver(legacy_rules(namespaces, session.extensions))
    try:
        with Sender() as sender:
            while result.packets < count:
                before, known = result.packets, len(result.examples)
                truth.restore(dice)
                _round(truth, session, sender, hits, dice, min(each, count - before), result)
                for text in result.examples[known:]:
                    print(text, flush=True)
                if result.packets // REPORT_EVERY > before // REPORT_EVERY:
                    print(result, flush=True)
                    for why, times in result.undecided.most_common(5):
                        print(f"  undecided {times} times: {why}", flush=True)
    finally:
        session.set_filter(NOTHING)
        hits.close()
    return result


def _round(
    truth: Truth, session: Session, sender: Sender, hits: RuleResolver, dice: random.Random, count: int, result: Result
) -> None:
    session.set_filter(EVERYTHING)
    before, _ = _until_quiet(truth, session, hits)
    truth.account()
    # What the kernel says from here on is kept: the tracer's event of a run comes later than the kernel's line, on a busy
    # machine much later, and a run that is inside the span must be in both.
    before += _until_quiet(truth, session, hits)[0]
    overruns = truth.overruns
    begin, events = time.monotonic_ns(), before
    with truth.replacing(dice):
        for number in range(1, count + 1):
            sender.send(dice)
            if number % AT_ONCE == 0:
                truth.collect()
                events += record.events(hits.feed(session.events()))
    behind, end = _until_quiet(truth, session, hits)
    session.set_filter(NOTHING)
    events += behind
    last = time.monotonic() + RULES_SECONDS
    while hits.is_waiting_for(events) and time.monotonic() < last:
        time.sleep(0.1)
        hits.feed(session.events())
    result.lost += sum(loss.count for loss in session.losses())
    if truth.overruns > overruns:
        print("the kernel's log was not read in time, so this round proves nothing", flush=True)
        return
    result.packets += count
    _compare(truth, _traces(hits, events, truth.netns()), (begin, end), result)


def _until_quiet(truth: Truth, session: Session, hits: RuleResolver) -> tuple[list[Event], int]:
    """Reads both accounts until neither has anything more, or time is up: the kernel's each time before the tracer's. What the
    tracer saw, and when the last reading of the kernel's began (ns, CLOCK_MONOTONIC)."""
    events: list[Event] = []
    until = time.monotonic() + QUIET_WITHIN
    while True:
        time.sleep(QUIET_SECONDS)
        began = time.monotonic_ns()
        came = truth.collect()
        seen = list(record.events(hits.feed(session.events())))
        events += seen
        if (not came and not seen) or time.monotonic() > until:
            return events, began


def _traces(hits: RuleResolver, events: list[Event], netns: frozenset[int]) -> Iterator[tuple[Event, RuleTrace]]:
    packets: dict[int, list[Event]] = {}
    for e in sorted(events, key=lambda e: e.time):
        packets.setdefault(e.packet, []).append(e)
    for e in sorted((e for own in packets.values() for e in complete_events(own)[0]), key=lambda e: e.time):
        if e.kind in (Kind.EVENT_TABLE, Kind.EVENT_CHAIN) and e.netns in netns:
            walk = hits.resolve(e).get("rule_trace")
            if walk:
                yield e, walk
    for packet in packets:
        hits.forget(packet)


def _compare(truth: Truth, traces: Iterator[tuple[Event, RuleTrace]], span: tuple[int, int], result: Result) -> None:
    """span: of the tracer's runs between these times (ns) the kernel's account was read, too; of others it may have been."""
    ours: dict[Key, list[tuple[Places, bool]]] = {}
    unknown: set[Key] = set()
    events: dict[Key, list[str]] = {}
    for e, walk in traces:
        visited = truth.visited(e, walk)
        if visited is None:
            continue
        if walk.undecided:
            unknown.add(visited[0])
            result.undecided[walk.undecided] += 1
        result.hotdrop += bool(walk.decision and walk.decision.hotdrop)
        result.evidence.update(v.evidence.value for v in walk.hits)
        ours.setdefault(visited[0], []).append((visited[1], span[0] <= e.time <= span[1]))
        events.setdefault(visited[0], []).append(f"packet={e.packet} protocol={e.protocol} flags={e.flags} state={e.state}")
    told = truth.account()
    for key in told.keys() | ours.keys():
        runs, there = ours.get(key, []), told.get(key, [])
        result.rules += len(there)
        if key not in unknown and by_hook(there) not in map(by_hook, may_be(runs)):
            here = [place for places, _ in runs for place in places]
            result.mismatches += 1
            result.examples.append(f"{key}\n    kernel {there}\n    tracer {here} {events.get(key)}")
