# SPDX-License-Identifier: Apache-2.0
"""How long an address stood for which rules.

A table's rules are one blob in the kernel; every change puts a new one in its place, and the address of an old one is used
again. So each blob has a life: from the replacement that put it there to the one that took it away.

Only so many are kept. Of what was given up it is known until when it was in force: an event from before that moment, at an
address of which no such old life is kept, is not explained by the rules that came later.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from dataclasses import dataclass

from tracer.events.table_trace import TableReplaced
from tracer.model.rule import Ruleset
from tracer.rules.iptables.table_reader import TableSnapshot
from tracer.util.lazy import Lazy

ADDRESSES_KEPT = 8192
"""Addresses that are remembered: one a table in force, and those that were in force lately."""
REPLACED_KEPT = 512
"""Lives that are over, and are remembered for packets that are still to be explained."""
REPLACED_BYTES_KEPT = 128 << 20
"""Bytes of the rules of those."""


@dataclass(eq=False)
class Generation:
    """Of one blob. born, died: ns, CLOCK_MONOTONIC; born 0 = not known, died 0 = it is in force. why: it could not be read.
    asked: how often. forgotten: stands for a life that was given up."""

    object: int
    born: int = 0
    died: int = 0
    snapshot: TableSnapshot | None = None
    ruleset: Ruleset | None = None
    why: str = ""
    asked: int = 0
    forgotten: bool = False

    @property
    def octets(self) -> int:
        """Of its rules in the kernel."""
        return self.snapshot.table.octets if self.snapshot and self.snapshot.table else 0


class GenerationLog:
    """All that are kept. given_up: how many were not, by what they were."""

    def __init__(self) -> None:
        self._lives: OrderedDict[int, list[Generation]] = OrderedDict()
        self._over: deque[Generation] = deque()
        self._octets = 0
        self._horizon = 0
        self.shed: Counter[str] = Counter()

    def at(self, address: int, time: int) -> Generation:
        """The life of an address at a time: the first not over then; a blob is in use a moment before that is told."""
        lives = self._lives.get(address, ())
        for life in lives:
            if not life.died or life.died > time:
                # Where lives were given up, one that began later may not be the one in force then.
                return life if life.born <= time or time >= self._horizon else _forgotten(address)
        return self._begin(address, time) if time >= self._horizon else _forgotten(address)

    def restart(self, life: Generation, time: int) -> Generation:
        """A new life at an address of which is known that it stands for something else now."""
        self._end(life, time)
        return self._begin(life.object, time)

    def replace(self, change: TableReplaced) -> None:
        """One is over, and another one begins."""
        before = self._last(change.before)
        self._end(before or self._begin(change.before, 0), change.time)
        there = self._last(change.object)
        if there and there.snapshot and there.snapshot.ended < change.time:
            self._end(there, change.time)  # its table went with its namespace, which nothing tells
            there = None
        if not there:
            self._begin(change.object, change.time)

    def read(self, life: Generation, snapshot: TableSnapshot) -> None:
        """Its rules have been read."""
        before = life.octets
        life.snapshot, life.ruleset, life.why = snapshot, None, ""
        self._octets += (life.octets - before) * bool(life.died)

    def in_force(self) -> list[Generation]:
        """Those that are not over."""
        return [lives[-1] for lives in self._lives.values() if lives and not lives[-1].died]

    def __len__(self) -> int:
        return sum(len(lives) for lives in self._lives.values())

    def _last(self, address: int) -> Generation | None:
        """The life that is not over."""
        lives = self._lives.get(address)
        return lives[-1] if lives and not lives[-1].died else None

    def _begin(self, address: int, time: int) -> Generation:
        life = Generation(address, time)
        self._lives.setdefault(address, []).append(life)
        self._lives.move_to_end(address)
        while len(self._lives) > ADDRESSES_KEPT:
            oldest = next(iter(self._lives))
            for other in [other for other in self._lives[oldest] if other.died]:
                self._over.remove(other)
                self._shed(other)
            if oldest in self._lives:
                self.shed["in force"] += 1
                del self._lives[oldest]
        return life

    def _end(self, life: Generation, time: int) -> None:
        life.died = time
        self._over.append(life)
        self._octets += life.octets
        while self._over and (len(self._over) > REPLACED_KEPT or self._octets > REPLACED_BYTES_KEPT):
            self._shed(self._over.popleft())

    def _shed(self, life: Generation) -> None:
        self._octets -= life.octets
        self._horizon = max(self._horizon, life.died)
        self.shed["replaced"] += 1
        if life.ruleset and isinstance(life.ruleset.chains, Lazy):
            life.ruleset.chains.forget()  # the walks of connections have it, too
        lives = self._lives[life.object]
        lives.remove(life)
        if not lives:
            del self._lives[life.object]


def _forgotten(address: int) -> Generation:
    return Generation(address, died=1, forgotten=True)
