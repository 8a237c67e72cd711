# SPDX-License-Identifier: Apache-2.0
"""How the rows of `top` are sorted: one entry each."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tracer.analysis.top.interval import Interval
from tracer.analysis.top.row import Row, merged

ORDERS: dict[str, Callable[[Row], float]] = {
    "packets": lambda row: row.packets,
    "drops": lambda row: row.drops,
    "failed": lambda row: row.failed,
    "syns": lambda row: row.syns,
    "syn-ack": lambda row: row.syn_ack.at(0.99) if row.syn_ack.count else -1,
    "time": lambda row: row.whole.at(0.99) if row.whole.count else -1,
}
"""The figure that is sorted by, largest first, by the word of --sort."""


class Ranking(NamedTuple):
    """The rows that are shown.

    Attributes:
        rows: The first ones in the order, with their texts.
        other: All others together.
        others: Number of these rows; rows that were evicted before count as one.
    """

    rows: list[tuple[str, Row]]
    other: Row
    others: int


def rank(interval: Interval, order: str, most: int) -> Ranking:
    """The first `most` rows of an interval in an order. Equal rows are in the order of their packets, then of their text."""
    figure = ORDERS[order]
    rows = sorted(interval.rows.items(), key=lambda item: (-figure(item[1]), -item[1].packets, item[0]))
    hidden = [row for _, row in rows[most:]]
    rest = interval.rest
    if rest.packets or rest.syns:
        hidden.append(rest)
    return Ranking(rows[:most], merged(hidden), len(hidden))
