# SPDX-License-Identifier: Apache-2.0
"""The figures that the table of `top` shows of a row: one entry a column."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tracer.analysis.durations import Distribution, short_time
from tracer.analysis.top.row import Row

WIDE_COLUMNS = 100
"""Width of a terminal from which on all columns are shown, columns."""
ABSENT = "-"


class TableColumn(NamedTuple):
    """One column.

    Attributes:
        title: Its title, in two lines.
        order: The word of --sort that sorts by it; "" = none.
        cell: Its text, from a row and the length of the interval, s.
        style: The style of a cell that is not zero, a name in tracer/render/_style.py.
        is_wide: It is shown on wide terminals only.
    """

    title: str
    order: str
    cell: Callable[[Row, float], str]
    style: str = ""
    is_wide: bool = False


def rate(count: int, seconds: float) -> str:
    """A count as a number per second: three digits, or whole; "0" only for zero."""
    if not count or seconds <= 0:
        return "0"
    value = count / seconds
    return f"{value:,.0f}" if value >= 99.95 else f"{value:.1f}" if value >= 9.995 else f"{value:.2g}"


def percentile(times: Distribution, share: float) -> str:
    """A percentile of times; ABSENT = there are none."""
    return short_time(times.at(share)) if times.count else ABSENT


RATES = (
    TableColumn("packets\n/s", "packets", lambda row, seconds: rate(row.packets, seconds)),
    TableColumn("drops\n/s", "drops", lambda row, seconds: rate(row.drops, seconds), "bad"),
)
"""The first columns of an interval of a live run."""
COUNTS = (
    TableColumn("\npackets", "packets", lambda row, seconds: f"{row.packets:,}"),
    TableColumn("\ndrops", "drops", lambda row, seconds: f"{row.drops:,}", "bad"),
)
"""The same of a whole capture, in which a rate over all its time says little."""
OTHERS = (
    TableColumn("SYNs\nok", "syns", lambda row, seconds: f"{row.good:,}"),
    TableColumn("\nfailed", "failed", lambda row, seconds: f"{row.failed:,}", "bad"),
    TableColumn("\n?", "", lambda row, seconds: f"{row.unsettled:,}", "doubt", is_wide=True),
    TableColumn("SYN-ACK\np50", "", lambda row, seconds: percentile(row.syn_ack, 0.5)),
    TableColumn("\np99", "syn-ack", lambda row, seconds: percentile(row.syn_ack, 0.99)),
    TableColumn("path\np50", "", lambda row, seconds: percentile(row.whole, 0.5), is_wide=True),
    TableColumn("\np99", "time", lambda row, seconds: percentile(row.whole, 0.99), is_wide=True),
)
