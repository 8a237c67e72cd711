# SPDX-License-Identifier: Apache-2.0
"""The packets that the plugin called lost between two nodes, compared with the log of the wire: each has to be a frame that the
wire dropped there.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from lab.wire import Fate, WireFrame
from tests.cluster import join_truth, wire_truth
from tests.cluster.join_truth import Way
from tests.cluster.wire_truth import Line

NAME = "lost_between_nodes"
_NODES = re.compile(r"ackets from node (\S+) to node (\S+) are lost")


@dataclass
class LossCount:
    """What the plugin called lost.

    Attributes:
        certain: Number of packets that were called lost for certain.
        likely: Number of packets that were called lost perhaps.
        wrong: A line for each packet that the wire did not drop, and for each way with more packets than it dropped.
    """

    certain: int = 0
    likely: int = 0
    wrong: list[str] = field(default_factory=list)


def compare(lines: Sequence[Line], log: Iterable[WireFrame]) -> LossCount:
    """Compares the findings, as they stand at the end, with the wire's log. A finding has the numbers of its first packets."""
    found = LossCount()
    dropped: Counter[Way] = Counter()
    for frame in log:
        if frame.fate is Fate.DROPPED:
            dropped[frame.source, frame.target, wire_truth.head_of(frame)] += 1
    views = {(view["node"], view["number"]): view for view in join_truth.all_views(lines)}
    called: Counter[tuple[str, str]] = Counter()
    left = dropped.copy()
    for finding in _findings(lines):
        ends = _NODES.search(finding["text"])
        if not ends:
            found.wrong.append(f"a finding names no nodes: {finding['text']}")
            continue
        source, target = ends[1], ends[2]
        called[source, target] += finding["count"]
        if finding["certain"]:
            found.certain += finding["count"]
        else:
            found.likely += finding["count"]
        for number in finding["packets"]:
            view = views.get((source, number))
            head = wire_truth.departure(view) if view else None
            if head is None:
                found.wrong.append(f"called lost on the way {source} -> {target}, and not shown to leave: packet {number}")
            elif left[source, target, head] < 1:
                found.wrong.append(f"called lost on the way {source} -> {target}, and not dropped there: {head}")
            else:
                left[source, target, head] -= 1
    truth: Counter[tuple[str, str]] = Counter()
    for (source, target, _), times in dropped.items():
        truth[source, target] += times
    for way, times in called.items():
        if times > truth[way]:
            found.wrong.append(f"called lost {times} times, dropped {truth[way]} times: {way[0]} -> {way[1]}")
    return found


def _findings(lines: Sequence[Line]) -> list[Line]:
    """The findings about losses: those of the last summary, and those that were printed and are missing there."""
    printed = [line for line in lines if line["type"] == "finding" and line["name"] == NAME]
    summaries = [line for line in lines if line["type"] == "summary" and "node" not in line]
    final = [each for each in (summaries[-1]["findings"] if summaries else ()) if each["name"] == NAME]
    texts = {each["text"] for each in final}
    return [*final, *(line for line in printed if line["text"] not in texts)]
