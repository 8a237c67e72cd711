# SPDX-License-Identifier: Apache-2.0
"""Statistics of a capture. Each statistic is one file of this package, found by its file name; its `STATISTIC` is the class.

    feed(packet)    counts a packet with owners, in the order in which packets were closed
    tables()        returns the results

The memory of a statistic must not grow with the number of packets.

Must not know: the format of a capture file, other statistics.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING, Protocol

from tracer.util.registry import Registry

if TYPE_CHECKING:  # the command line imports this package for the names of the statistics
    from tracer.analysis.result_table import ResultTable
    from tracer.model.packet import Packet


class Statistic(Protocol):
    """The interface of a statistic."""

    def feed(self, packet: Packet) -> None: ...
    def tables(self) -> Iterable[ResultTable]: ...


MOST = 20_000
"""Maximum number of keys that a statistic counts separately. All others are counted together."""
FIRST = ("verdicts", "syns", "rules", "owners")
_STATISTICS: Registry[type[Statistic]] = Registry(__name__, "STATISTIC", kind="statistic")


@cache
def names() -> tuple[str, ...]:
    """Returns the names of all statistics."""
    return _STATISTICS.names()


def in_order() -> tuple[str, ...]:
    """Returns the names in the order of the output: the most important ones first."""
    return (*(n for n in FIRST if n in names()), *(n for n in names() if n not in FIRST))


def make(name: str) -> Statistic:
    """Makes a new statistic of that name."""
    return _STATISTICS.find(name)()
