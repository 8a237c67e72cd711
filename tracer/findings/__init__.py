# SPDX-License-Identifier: Apache-2.0
"""Findings: what is wrong, and what shows it. A finding is one file of this package, found by its name.

A file has `find(packet, context)`: the Finding that this packet shows, None when it shows none. One that a SYN's verdict shows
has `find_syn(verdict, context)`. Its name, the times and the number of packets are filled in here; packets with the same key
show the same cause and make one finding. A second finding file needs a test tests/unit/findings/test_NAME.py, a page
docs/findings/NAME.md and a case in tests/kernel/cures.

In a replay a question to the node may not have been asked (NotAsked). A finding that can do without the answer says
`answered(question, otherwise)`, where `otherwise` makes it leave the statement out; any other finding is not made.

Must not know: how packets are caught or shown, other findings.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache
from importlib import import_module
from typing import TypeVar

from tracer.findings.context import FindingContext
from tracer.model.finding import Finding
from tracer.model.handshake import HandshakeVerdict
from tracer.model.packet import Packet
from tracer.util.asking import answered

T = TypeVar("T")
Finder = Callable[[Packet, FindingContext], Finding | None]
SynFinder = Callable[[HandshakeVerdict, FindingContext], Finding | None]

NUMBERS_KEPT = 10
MOST = 1000
"""So many causes are kept apart in one run; more are not looked at, for a run that has those has said enough."""


@cache
def finders() -> tuple[tuple[str, Finder], ...]:
    """Every finding there is: its file's name and its function."""
    modules = ((m.name, import_module(f"{__name__}.{m.name}")) for m in pkgutil.iter_modules(__path__))
    return tuple(sorted((name, module.find) for name, module in modules if hasattr(module, "find")))


@cache
def syn_finders() -> tuple[tuple[str, SynFinder], ...]:
    """The findings that SYN verdicts show, not packets."""
    modules = ((m.name, import_module(f"{__name__}.{m.name}")) for m in pkgutil.iter_modules(__path__))
    return tuple(sorted((name, module.find_syn) for name, module in modules if hasattr(module, "find_syn")))


class Findings:
    """Those of one run."""

    def __init__(self, context: FindingContext | None = None) -> None:
        self._context = context or FindingContext()
        self._found: dict[tuple[object, ...], Finding] = {}

    @property
    def all(self) -> list[Finding]:
        """Certain ones first, then in the order they were found."""
        return sorted(self._found.values(), key=lambda f: not f.certain)

    def look(self, packet: Packet) -> list[Finding]:
        """Takes a packet whose owners are set; returns what has become certain by it."""
        return self._join(((name, self._ask(find, packet)) for name, find in finders()), packet)

    def look_syn(self, verdict: HandshakeVerdict) -> list[Finding]:
        """Takes a SYN's verdict; returns what has become certain by it."""
        if not verdict.attempt:
            return []
        told = ((name, self._ask(find, verdict)) for name, find in syn_finders())
        return self._join(told, verdict.attempt.syn)

    def _ask(self, find: Callable[[T, FindingContext], Finding | None], about: T) -> Finding | None:
        """What a finding says; nothing where it needs an answer that a capture does not have."""
        return answered(lambda: find(about, self._context), None)

    def _join(self, found: Iterable[tuple[str, Finding | None]], packet: Packet) -> list[Finding]:
        new = []
        for name, told in found:
            if told and ((name, *told.key) in self._found or len(self._found) < MOST):
                key = name, *told.key
                before = self._found.get(key)
                self._found[key] = now = _joined(before, replace(told, name=name), packet)
                if now.certain and not (before and before.certain):
                    new.append(now)
        return new


def _joined(before: Finding | None, told: Finding, packet: Packet) -> Finding:
    """What is known after one more packet. What was certain once is not made less so."""
    if not before:
        return replace(told, packets=1, first=packet.time, last=packet.time, numbers=(packet.number,))
    base = before if before.certain and not told.certain else told
    numbers = (*before.numbers, packet.number)[:NUMBERS_KEPT]
    first, last = min(before.first, packet.time), max(before.last, packet.time)
    return replace(base, packets=before.packets + 1, first=first, last=last, numbers=numbers)
