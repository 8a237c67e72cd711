# SPDX-License-Identifier: Apache-2.0
"""An interval of `top` as JSON: a `top` line of tracer/render/schema.json."""

from __future__ import annotations

from typing import Any

from tracer.analysis.durations import Distribution
from tracer.analysis.top.interval import Interval, Losses
from tracer.analysis.top.orders import rank
from tracer.analysis.top.row import Row
from tracer.render.parts.json_packet import rfc3339

Object = dict[str, Any]


def interval_object(interval: Interval, order: str, most: int) -> Object:
    """The line of an interval, with its first `most` rows in an order."""
    ranking, seconds = rank(interval, order, most), interval.seconds
    began = {"time": rfc3339(interval.began)} if interval.began else {}
    out: Object = {
        "type": "top",
        **began,
        "seconds": round(seconds, 3),
        "by": interval.dimension,
        "sort": order,
        "total": _row(interval.total, seconds),
        "rows": [],
        "lost": _losses(interval.losses),
        "lost_so_far": _losses(interval.so_far),
        "lost_by_probe": interval.lost_by_probe,
        "evicted_rows": interval.evicted,
    }
    for key, row in ranking.rows:
        owner = {"owner": row.owner} if row.owner else {}
        out["rows"].append({"key": key, **owner, **_row(row, seconds)})
    if ranking.others:
        out["other"] = _row(ranking.other, seconds)
    return out


def _row(row: Row, seconds: float) -> Object:
    out: Object = {
        "packets": row.packets,
        "packets_per_s": _rate(row.packets, seconds),
        "drops": row.drops,
        "drops_per_s": _rate(row.drops, seconds),
        "incomplete": row.incomplete,
        "syns": {
            "ok": row.good,
            "failed": row.failed,
            "unknown": row.unsettled,
            "causes": {name: count for name, count in sorted(row.causes.items()) if count},
        },
    }
    for key, times in (("syn_ack", row.syn_ack), ("path", row.whole)):
        if times.count:
            out[key] = _times(times)
    ways = sorted(row.ways.items(), key=lambda item: (-item[1].count, item[0]))
    out["hops"] = [{"from": before, "to": after, **_times(times)} for (before, after), times in ways]
    return out


def _times(times: Distribution) -> Object:
    return {"count": times.count, "p50_ns": round(times.at(0.5) * 1e3), "p99_ns": round(times.at(0.99) * 1e3)}


def _rate(count: int, seconds: float) -> float:
    return round(count / seconds, 3) if seconds > 0 else 0.0


def _losses(losses: Losses) -> Object:
    return {"events": losses.events, "packets_left_out": losses.shed, "packets_unexplained": losses.unexplained}
