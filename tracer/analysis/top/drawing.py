# SPDX-License-Identifier: Apache-2.0
"""Draws an interval of `top` with rich: its head, its table, and of one row the times between places and the newest packets.

All texts of packets, objects and rules are escaped.
"""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from tracer.analysis.top.columns import COUNTS, OTHERS, RATES, WIDE_COLUMNS, TableColumn, percentile, rate
from tracer.analysis.top.dimensions import DIMENSIONS
from tracer.analysis.top.interval import Interval, Losses
from tracer.analysis.top.orders import Ranking
from tracer.analysis.top.row import Row
from tracer.model.joined_packet import JoinedPacket
from tracer.model.loss import LEFT_OUT
from tracer.packets.joined_views import first_packet, first_time, last_packet
from tracer.render.parts.terminal_text import STYLES, count, local, outcome_style, plain
from tracer.util.endpoint_format import format_endpoint

SHOWN_CAUSES = 4
"""Number of causes of SYNs that the head names."""
SHOWN_NODES = 3
"""Number of nodes of which the head says what is missing."""
SELECTED = "reverse"
"""Style of the selected row."""


def head(interval: Interval, order: str) -> list[Text]:
    """The lines above the table. The last ones always say what is missing in it."""
    total, kind = interval.total, DIMENSIONS[interval.dimension]
    drops = "bad" if total.drops else "quiet"
    return [
        _joined(
            ("strong", f"top by {kind.title}"),
            ("quiet", f"sorted by {order}, {interval.seconds:.1f} s"),
            ("quiet", count(interval.nodes, "node") if interval.nodes else ""),
        ),
        _joined(
            ("", "SYNs alone:" if kind.of_syn else ""),
            ("", f"{count(total.packets, 'packet')} {rate(total.packets, interval.seconds)}/s"),
            (drops, f"{count(total.drops, 'drop')} {rate(total.drops, interval.seconds)}/s"),
        ),
        *_syns(total),
        *_missing(interval, total),
        *_missing_by_node(interval),
    ]


def _syns(total: Row) -> list[Text]:
    """The SYNs, and their most frequent causes."""
    line = [("", count(total.syns, "SYN")), ("good" if total.good else "quiet", f"{total.good:,} ok")]
    line.append(("bad" if total.failed else "quiet", f"{total.failed:,} failed"))
    line += [("doubt", f"{total.unsettled:,} not known")] if total.unsettled else []
    named = total.causes.most_common(SHOWN_CAUSES)
    causes = [f"{n:,} {plain(name)}" for name, n in named]
    more = total.syns - sum(n for _, n in named)
    causes += [f"{more:,} other"] if more else []
    return [_joined(*line), Text(f"causes: {', '.join(causes)}", style=STYLES["quiet"])] if causes else [_joined(*line)]


def _missing(interval: Interval, total: Row) -> list[Text]:
    """What was lost in the interval, and since the start if that is more."""
    parts = [_losses(interval.losses)] if interval.losses != Losses() else []
    parts += [count(total.incomplete, "incomplete packet")] if total.incomplete else []
    parts += [f"{count(total.doubtful, 'packet')} perhaps counted more than once"] if total.doubtful else []
    if interval.evicted:
        parts.append(f"{count(interval.evicted, 'row')} counted as other")
    parts += _by_probe(interval.lost_by_probe)
    text = f"missing: {', '.join(parts) or 'nothing'}"
    lines = [Text(text, style=STYLES["doubt" if parts else "quiet"])]
    return lines if interval.so_far == interval.losses else [*lines, missing_so_far(interval)]


def _by_probe(lost: Mapping[str, int]) -> list[str]:
    events = {probe: n for probe, n in lost.items() if probe != LEFT_OUT}
    return [f"by probe {' '.join(f'{plain(probe)} {n:,}' for probe, n in sorted(events.items()))}"] if events else []


def _missing_by_node(interval: Interval) -> list[Text]:
    """What each of several nodes lost in the interval, those that lost most first."""
    lost = sorted(interval.by_node.items(), key=lambda item: (-item[1].losses.total, item[0]))
    lines = [
        Text(f"missing on {plain(node)}: {', '.join([_losses(each.losses), *_by_probe(each.by_probe)])}", STYLES["doubt"])
        for node, each in lost[:SHOWN_NODES]
    ]
    more = len(lost) - len(lines)
    return [*lines, Text(f"missing on {count(more, 'more node')}", STYLES["doubt"])] if more else lines


def missing_so_far(interval: Interval) -> Text:
    """What the run lacks up to the end of an interval."""
    return Text(f"missing since the start: {_losses(interval.so_far) or 'nothing'}", style=STYLES["doubt"])


def _losses(losses: Losses) -> str:
    parts = (
        f"{count(losses.shed, 'packet')} left out" if losses.shed else "",
        f"{count(losses.events, 'event')} lost" if losses.events else "",
        f"{count(losses.unexplained, 'packet')} not explained before the end" if losses.unexplained else "",
        f"{count(losses.not_sent, 'result')} that this client was too slow for" if losses.not_sent else "",
    )
    return ", ".join(part for part in parts if part)


def table(
    interval: Interval,
    ranking: Ranking,
    selected: int | None = None,
    *,
    width: int,
    folds: bool = True,
    counts: bool = False,
) -> RenderableType:
    """The table.

    Args:
        interval: Gives its length and what the rows stand for.
        ranking: The rows.
        selected: Number of the selected row; None = none.
        width: Width of the terminal, columns.
        folds: Long texts take several lines; False = they are cut, so that each row is one line.
        counts: Packets and drops are numbers; False = they are rates.
    """
    is_wide = width >= WIDE_COLUMNS
    columns = [column for column in (COUNTS if counts else RATES) + OTHERS if is_wide or not column.is_wide]
    has_owners = is_wide and any(row.owner for _, row in ranking.rows)
    drawn = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), width=width, header_style=STYLES["quiet"])
    title = Text(f"\n{DIMENSIONS[interval.dimension].title}")
    drawn.add_column(title, ratio=1, overflow="fold" if folds else "ellipsis", no_wrap=not folds)
    if has_owners:
        owner_style = STYLES["place"]
        drawn.add_column(
            Text("\nowner"), ratio=1, overflow="fold" if folds else "ellipsis", no_wrap=not folds, style=owner_style
        )
    for column in columns:
        drawn.add_column(Text(column.title), justify="right", no_wrap=True)
    for number, (key, row) in enumerate(ranking.rows):
        cells = [Text(plain(key)), *([Text(plain(row.owner))] if has_owners else [])]
        cells += [_cell(column, row, interval.seconds) for column in columns]
        drawn.add_row(*cells, style=SELECTED if number == selected else "")
    if ranking.others:
        name = [Text("other", style=STYLES["quiet"]), *([Text("")] if has_owners else [])]
        drawn.add_row(*name, *(_cell(column, ranking.other, interval.seconds) for column in columns))
    if not ranking.rows and not ranking.others:
        drawn.add_row(Text("nothing", style=STYLES["quiet"]))
    return drawn


def _cell(column: TableColumn, row: Row, seconds: float) -> Text:
    text = column.cell(row, seconds)
    return Text(text, style=STYLES[column.style] if column.style and text not in ("0", "-") else "")


def ways(title: str, row: Row, most: int, width: int) -> RenderableType:
    """The times between places of one row: the ways with the most packets."""
    drawn = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), width=width, header_style=STYLES["quiet"])
    drawn.add_column(Text(plain(title)), ratio=1, overflow="fold")
    for name in ("packets", "p50", "p99"):
        drawn.add_column(name, justify="right", no_wrap=True, min_width=7)
    found = sorted(row.ways.items(), key=lambda item: (-item[1].count, item[0]))
    for way, times in found[:most]:
        drawn.add_row(Text(plain(way.text)), f"{times.count:,}", percentile(times, 0.5), percentile(times, 0.99))
    if not found:
        drawn.add_row(Text("no packet met two places", style=STYLES["quiet"]))
    return drawn


def packets(key: str, row: Row, most: int, width: int) -> RenderableType:
    """The newest packets of one row: first those that failed, then the others, each the newest first."""
    drawn = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), width=width, header_style=STYLES["quiet"])
    drawn.add_column("time", no_wrap=True)
    drawn.add_column(Text(plain(f"newest packets of {key}")), ratio=5, overflow="fold")
    drawn.add_column("flags", no_wrap=True)
    drawn.add_column("outcome", ratio=5, overflow="fold")
    for shown in [*reversed(row.failures), *reversed(row.newest)][:most]:
        packet, last = first_packet(shown), last_packet(shown)
        ends, incomplete = packet.endpoints, " (incomplete)" * (not last.complete)
        nodes = f"{' > '.join(shown.nodes)}: " if isinstance(shown, JoinedPacket) else ""
        way = f"{format_endpoint(ends.src, ends.sport)} -> {format_endpoint(ends.dst, ends.dport)}"
        verdict = plain(f"{nodes}{last.verdict or last.outcome}") + incomplete
        flags = packet.tcp_flags or packet.protocol
        cells = (local(first_time(shown)), plain(way), plain(flags))
        drawn.add_row(*map(Text, cells), Text(verdict, style=STYLES[outcome_style(last.outcome)]))
    return drawn


def _joined(*parts: tuple[str, str]) -> Text:
    line = Text()
    for style, text in parts:
        if not text:
            continue
        line.append("   " if line else "")
        line.append(text, style=STYLES[style] if style else "")
    return line
