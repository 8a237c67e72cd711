# SPDX-License-Identifier: Apache-2.0
"""Rounds of random rules and packets, and the comparison of the kernel's account with the tracer's.

Both accounts are lists of places, (chain, number), by what identifies a packet in a table: each packet has its own header, so
header, table and interfaces identify it, and all runs of that table by that packet are compared as one list. Packets are sent
one after another without waiting for their outcome.

The kernel sends by itself, too, and at any time: errors about neighbour discovery that a rule rejected, retransmitted
handshakes. So a round begins and ends where both accounts had nothing new for a while. The tracer's account is read before the
kernel's and after it, so it must have everything that the kernel's has; what only the tracer's has must lie outside the time
between the two.
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
from tracer.events.record import Event, EventRow, Kind
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
"""Packets sent before the kernel's log is read, which holds a limited number of lines."""
QUIET_SECONDS, QUIET_WITHIN = 0.3, 5
"""A round begins and ends where nothing came for QUIET_SECONDS; the longest wait for that is QUIET_WITHIN seconds."""
RULES_SECONDS = 60
TRIES, SPARE_TRIES = 3, 3
"""The most rounds that may be started: TRIES for each round that is needed, and SPARE_TRIES. A round may prove nothing."""
REPORT_EVERY = 250
"""Packets after which a long run reports its progress."""


class Truth(Protocol):
    """One back end. overruns: how often the kernel's report was not read in time."""

    overruns: int

    def prepare(self) -> None:
        """Loads what must exist when the probes are attached, and makes the kernel report its trace."""

    def restore(self, rng: random.Random) -> None:
        """Puts random rules in place of all others, in the namespaces that are compared."""

    def replacing(self, rng: random.Random) -> AbstractContextManager[None]:
        """Within the block, some rules may be replaced repeatedly."""

    def netns(self) -> frozenset[int]:
        """The namespaces with the rules that are compared."""

    def collect(self) -> bool:
        """Takes what the kernel has reported since the last call; returns whether there was anything."""

    def account(self) -> Account:
        """What the kernel has reported since the last call. A policy is number 0."""

    def key_and_places(self, e: Event, trace: RuleTrace) -> tuple[Key, Places] | None:
        """The same for one event with its rule trace; None when the kernel reports nothing of it."""


@dataclass
class Result:
    """Counts of all rounds.

    Attributes:
        packets: Packets compared.
        tries: Rounds started.
        limit: The most rounds that may be started.
        rules: Places compared.
        hotdrop: Rule traces that ended in a match that dropped the packet.
        undecided: Rule traces reported as not known, by reason.
    """

    packets: int = 0
    tries: int = 0
    limit: int = 0
    rules: int = 0
    mismatches: int = 0
    lost: int = 0
    hotdrop: int = 0
    undecided: Counter[str] = field(default_factory=Counter)
    evidence: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        seen = " ".join(f"{k}={n}" for k, n in sorted(self.evidence.items()))
        counts = f"packets={self.packets} rules={self.rules} {seen} hotdrop={self.hotdrop} lost={self.lost}"
        return f"{counts} undecided={self.undecided.total()} tries={self.tries}/{self.limit} mismatches={self.mismatches}"


def rounds(truth: Truth, session: Session, count: int, seed: int, each: int = 60) -> Result:
    """Compares `count` packets, `each` through a new set of random rules; fewer when too many rounds prove nothing."""
    rng, namespaces = random.Random(seed), Namespaces()
    result = Result(limit=TRIES * -(-count // each) + SPARE_TRIES)
    session.drain()
    session.losses()
    resolver = RuleResolver(legacy_rules(namespaces, session.extensions))
    try:
        with Sender() as sender:
            while result.packets < count and result.tries < result.limit:
                result.tries += 1
                before, known = result.packets, len(result.examples)
                truth.restore(rng)
                _round(truth, session, sender, resolver, rng, min(each, count - before), result)
                for text in result.examples[known:]:
                    print(text, flush=True)
                if result.packets // REPORT_EVERY > before // REPORT_EVERY:
                    print(result, flush=True)
                    for why, times in result.undecided.most_common(5):
                        print(f"  undecided {times} times: {why}", flush=True)
    finally:
        session.set_filter(NOTHING)
        resolver.close()
    return result


def _round(
    truth: Truth, session: Session, sender: Sender, resolver: RuleResolver, rng: random.Random, count: int, result: Result
) -> None:
    session.set_filter(EVERYTHING)
    before, _ = _until_quiet(truth, session, resolver)
    truth.account()
    # What the kernel reports from here on is kept: the tracer's event of a run comes later than the kernel's line, on a busy
    # machine much later, and a run that is inside the span must be in both.
    before += _until_quiet(truth, session, resolver)[0]
    overruns = truth.overruns
    begin, events = time.monotonic_ns(), before
    with truth.replacing(rng):
        for number in range(1, count + 1):
            sender.send(rng)
            if number % AT_ONCE == 0:
                truth.collect()
                events += record.events(resolver.feed(session.events()))
    last_events, end = _until_quiet(truth, session, resolver)
    session.set_filter(NOTHING)
    events += last_events
    last = time.monotonic() + RULES_SECONDS
    while resolver.is_waiting_for(events) and time.monotonic() < last:
        time.sleep(0.1)
        resolver.feed(session.events())
    result.lost += sum(loss.count for loss in session.losses())
    if truth.overruns > overruns:
        print("the kernel's log was not read in time, so this round proves nothing", flush=True)
        return
    result.packets += count
    _compare(truth, _traces(resolver, events, truth.netns()), (begin, end), result)


def _until_quiet(truth: Truth, session: Session, resolver: RuleResolver) -> tuple[list[EventRow], int]:
    """Reads both accounts until neither has anything more, or time is up: each time the kernel's before the tracer's. Returns
    the tracer's events, and when the last reading of the kernel's began (ns, CLOCK_MONOTONIC)."""
    events: list[EventRow] = []
    until = time.monotonic() + QUIET_WITHIN
    while True:
        time.sleep(QUIET_SECONDS)
        began = time.monotonic_ns()
        has_lines = truth.collect()
        new_events = list(record.events(resolver.feed(session.events())))
        events += new_events
        if (not has_lines and not new_events) or time.monotonic() > until:
            return events, began


def _traces(resolver: RuleResolver, events: list[EventRow], netns: frozenset[int]) -> Iterator[tuple[Event, RuleTrace]]:
    packets: dict[int, list[Event]] = {}
    for e in sorted((e for e in events if isinstance(e, Event)), key=lambda e: e.time):
        packets.setdefault(e.packet, []).append(e)
    found: list[tuple[Event, RuleTrace]] = []
    for packet, own in packets.items():
        resolver.begin_packet(own, True)
        for e in complete_events(own)[0]:
            trace = resolver.resolve(e).trace if e.kind in (Kind.EVENT_TABLE, Kind.EVENT_CHAIN) and e.netns in netns else None
            found += [(e, trace)] if trace else []
        resolver.forget([packet])
    yield from sorted(found, key=lambda each: each[0].time)


def _compare(truth: Truth, traces: Iterator[tuple[Event, RuleTrace]], span: tuple[int, int], result: Result) -> None:
    """span: for the tracer's runs between these times (ns) the kernel's account was read, too; for others it may have been."""
    in_tracer: dict[Key, list[tuple[Places, bool]]] = {}
    unknown: set[Key] = set()
    events: dict[Key, list[str]] = {}
    for e, trace in traces:
        key_and_places = truth.key_and_places(e, trace)
        if key_and_places is None:
            continue
        if trace.undecided:
            unknown.add(key_and_places[0])
            result.undecided[trace.undecided] += 1
        result.hotdrop += bool(trace.decision and trace.decision.hotdrop)
        result.evidence.update(v.evidence.value for v in trace.hits)
        in_tracer.setdefault(key_and_places[0], []).append((key_and_places[1], span[0] <= e.time <= span[1]))
        events.setdefault(key_and_places[0], []).append(
            f"packet={e.packet} protocol={e.protocol} flags={e.flags} state={e.state}"
        )
    in_kernel = truth.account()
    for key in in_kernel.keys() | in_tracer.keys():
        runs, kernel_places = in_tracer.get(key, []), in_kernel.get(key, [])
        result.rules += len(kernel_places)
        if key not in unknown and by_hook(kernel_places) not in map(by_hook, may_be(runs)):
            tracer_places = [place for places, _ in runs for place in places]
            result.mismatches += 1
            result.examples.append(f"{key}\n    kernel {kernel_places}\n    tracer {tracer_places} {events.get(key)}")
