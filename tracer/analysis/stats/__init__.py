# SPDX-License-Identifier: Apache-2.0
"""Statistics of a capture. A statistic is one file of this package, found by its name; its class is named STATISTIC there.

    take(packet)    a packet, in the order they ended, with its owners
    tables()        what has come of it

What it keeps must not grow with the number of packets.

Must not know: the format of a capture file, other statistics.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Iterable
from functools import cache
from importlib import import_module
from typing import Protocol

from tracer.analysis.result_table import ResultTable
from tracer.model.packet import Packet


class Statistic(Protocol):
    """What a file of this package has."""

    def feed(self, packet: Packet) -> None: ...
    def tables(self) -> Iterable[ResultTable]: ...


MOST = 20_000
"""Different things that a statistic counts one by one; the rest are counted together."""
FIRST = ("verdicts", "syns", "rules", "owners")


@cache
def names() -> tuple[str, ...]:
    """Of every statistic there is."""
    return tuple(sorted(m.name for m in pkgutil.iter_modules(__path__) if not m.name.startswith("_")))


def in_order() -> tuple[str, ...]:
    """Their names as they are shown: what is asked first stands first."""
    return (*(n for n in FIRST if n in names()), *(n for n in names() if n not in FIRST))


def make(name: str) -> Statistic:
    """A new one of that name."""
    made: Statistic = import_module(f"{__name__}.{name}").STATISTIC()
    return made
