# SPDX-License-Identifier: Apache-2.0
"""Generations of legacy tables: which rules an address stood for, and from when to when.

The rules of a table are one blob in the kernel. Every change puts a new blob in its place, and the address of an old one is
used again. A generation is one blob, from the replacement that put it in force to the replacement that removed it.

The number of generations kept is bounded. The end of those that were given up is known: an earlier event at an address without
a generation of that time is not explained by the rules that came later.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from dataclasses import dataclass

from tracer.events.table_trace import TableReplaced
from tracer.model.rule import Ruleset
from tracer.rules.iptables.request_queue import SentRequests
from tracer.rules.iptables.table_reader import TableSnapshot
from tracer.util.evictions import evictions
from tracer.util.lazy import Lazy

ADDRESSES_KEPT = 8192
"""Most addresses kept: one per table in force, and those recently in force."""
REPLACED_KEPT = 512
"""Most replaced generations kept, for packets that are still to be explained."""
REPLACED_BYTES_KEPT = 128 << 20
"""Most bytes of rules in replaced generations."""
IN_FORCE_BYTES_KEPT = 512 << 20
"""Most bytes of rules in force. The tables of a namespace that was removed stay in force as far as is known."""


@dataclass(eq=False)
class Generation:
    """The time that one blob was in force.

    Attributes:
        object: Address of the blob in the kernel.
        since: Begin, ns, CLOCK_MONOTONIC, 0 = not known.
        until: End, ns, CLOCK_MONOTONIC, 0 = still in force.
        snapshot: Its rules, None = not read.
        ruleset: Its rules as a Ruleset, None = not made yet.
        why: Why it could not be read, "" = no failure.
        requests: How often it was requested.
        sent: The requests for its table that were under way when it was replaced, None = none. They may have read it before.
        is_shed: Whether it stands for a generation that was given up.
    """

    object: int
    since: int = 0
    until: int = 0
    snapshot: TableSnapshot | None = None
    ruleset: Ruleset | None = None
    why: str = ""
    requests: int = 0
    sent: SentRequests | None = None
    is_shed: bool = False

    @property
    def octets(self) -> int:
        """Bytes of its rules in the kernel, 0 = not known."""
        return self.snapshot.table.octets if self.snapshot and self.snapshot.table else 0


class GenerationLog:
    """All generations that are kept.

    Attributes:
        shed: Number of generations given up, by kind: "in force", "replaced"; "rules in force".
        changes: Number of changes so far of what an address stands for.
        replaced_at: Time of the last replacement, ns, CLOCK_MONOTONIC, 0 = none.
    """

    def __init__(self) -> None:
        self._by_address: OrderedDict[int, list[Generation]] = OrderedDict()
        self._replaced: deque[Generation] = deque()
        self._replaced_octets = 0
        self._horizon = 0
        self.changes = self.replaced_at = 0
        self.shed: Counter[str] = Counter()

    def at(self, address: int, time: int) -> Generation:
        """The generation of an address at a time: the first not ended then. A blob is in use shortly before it is reported."""
        generations = self._by_address.get(address, ())
        for generation in generations:
            if not generation.until or generation.until > time:
                # After some were given up, a generation that began later may not be the one in force at that time.
                return generation if generation.since <= time or time >= self._horizon else _placeholder(address)
        return self._begin(address, time) if time >= self._horizon else _placeholder(address)

    def restart(self, generation: Generation, time: int) -> Generation:
        """Ends a generation and begins a new one at its address, which now stands for other rules."""
        self._end(generation, time)
        return self._begin(generation.object, time)

    def replace(self, change: TableReplaced) -> Generation:
        """Ends the generation that was replaced, and begins the new one. Returns the one that was replaced."""
        before = self._current(change.before) or self._begin(change.before, 0)
        self._end(before, change.time)
        current = self._current(change.object)
        if current and current.snapshot and current.snapshot.ended < change.time:
            self._end(current, change.time)  # its table was removed with its namespace, which no event reports
            current = None
        if not current:
            self._begin(change.object, change.time)
        return before

    def read(self, generation: Generation, snapshot: TableSnapshot) -> None:
        """Stores the rules that were read."""
        before = generation.octets
        self.changes += 1
        generation.snapshot, generation.ruleset, generation.why = snapshot, None, ""
        self._replaced_octets += (generation.octets - before) * bool(generation.until)
        self._limit_in_force(generation)

    def _limit_in_force(self, newest: Generation) -> None:
        """Gives up the generations that came into force first. Their rules are read again when a packet meets them."""
        held = [generation for generation in self.in_force() if generation.octets]
        octets = sum(generation.octets for generation in held)
        for generation in held:
            if octets <= IN_FORCE_BYTES_KEPT:
                return
            if generation is not newest:
                octets -= generation.octets
                self._remove(generation)
                self._count("rules in force")

    def in_force(self) -> list[Generation]:
        """Generations that have not ended."""
        return [generations[-1] for generations in self._by_address.values() if generations and not generations[-1].until]

    def __len__(self) -> int:
        return sum(len(generations) for generations in self._by_address.values())

    def _current(self, address: int) -> Generation | None:
        """The generation in force at an address, None = none."""
        generations = self._by_address.get(address)
        return generations[-1] if generations and not generations[-1].until else None

    def _begin(self, address: int, time: int) -> Generation:
        generation = Generation(address, time)
        self.changes += 1
        self._by_address.setdefault(address, []).append(generation)
        self._by_address.move_to_end(address)
        while len(self._by_address) > ADDRESSES_KEPT:
            oldest = next(iter(self._by_address))
            for other in [other for other in self._by_address[oldest] if other.until]:
                self._replaced.remove(other)
                self._shed(other)
            if oldest in self._by_address:
                self._remove(self._by_address[oldest][-1])
                self._count("in force")
        return generation

    def _end(self, generation: Generation, time: int) -> None:
        generation.until = time
        self.changes += 1
        self.replaced_at = max(self.replaced_at, time)
        self._replaced.append(generation)
        self._replaced_octets += generation.octets
        while self._replaced and (len(self._replaced) > REPLACED_KEPT or self._replaced_octets > REPLACED_BYTES_KEPT):
            self._shed(self._replaced.popleft())

    def _shed(self, generation: Generation) -> None:
        self._replaced_octets -= generation.octets
        self._horizon = max(self._horizon, generation.until)
        self._count("replaced")
        self._remove(generation)

    def _remove(self, generation: Generation) -> None:
        self.changes += 1
        if generation.ruleset and isinstance(generation.ruleset.chains, Lazy):
            generation.ruleset.chains.forget()  # the rule traces of connections also refer to it
        generations = self._by_address[generation.object]
        generations.remove(generation)
        if not generations:
            del self._by_address[generation.object]

    def _count(self, what: str) -> None:
        self.shed[what] += 1
        evictions.add(f"generations of tables ({what})")


def _placeholder(address: int) -> Generation:
    return Generation(address, until=1, is_shed=True)
