# SPDX-License-Identifier: Apache-2.0
"""An interval of `top` as JSON: a `top` line of tracer/render/schema.json."""

from __future__ import annotations

from typing import Any

from tracer.analysis.durations import Distribution
from tracer.analysis.top.interval import Interval, Losses
from tracer.analysis.top.orders import rank
from tracer.analysis.top.row import Row, RowWay
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
    if interval.nodes:
        out["nodes"] = interval.nodes
        out["lost_by_node"] = {
            node: {**_losses(each.losses), "by_probe": each.by_probe} for node, each in sorted(interval.by_node.items())
        }
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
    if row.doubtful:
        out["doubtful"] = row.doubtful
    for key, times in (("syn_ack", row.syn_ack), ("path", row.whole)):
        if times.count:
            out[key] = _times(times)
    ways = sorted(row.ways.items(), key=lambda item: (-item[1].count, item[0]))
    out["hops"] = [_way(way) | _times(times) for way, times in ways]
    return out


def _way(way: RowWay) -> Object:
    return ({"node": way.node} if way.node else {}) | {"from": way.before, "to": way.after}


def _times(times: Distribution) -> Object:
    return {"count": times.count, "p50_ns": round(times.at(0.5) * 1e3), "p99_ns": round(times.at(0.99) * 1e3)}


def _rate(count: int, seconds: float) -> float:
    return round(count / seconds, 3) if seconds > 0 else 0.0


def _losses(losses: Losses) -> Object:
    not_sent = {"not_sent": losses.not_sent} if losses.not_sent else {}
    return {
        "events": losses.events,
        "packets_left_out": losses.shed,
        "packets_unexplained": losses.unexplained,
        **not_sent,
    }
