# SPDX-License-Identifier: Apache-2.0
"""The joins that the plugin printed, compared with the log of the wire: each one has to be a frame that arrived there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from lab.wire import Fate, WireFrame
from tests.cluster import wire_truth
from tests.cluster.wire_truth import COPIES, Line, WireHead

Way = tuple[str, str, WireHead]
"""The node that sent a packet, the one that got it, and its header."""


@dataclass
class JoinCount:
    """What the plugin said about packets between nodes.

    Attributes:
        packets: Packets that the nodes saw, a joined one once.
        joined: Joins by way.
        wrong: A line for each join of two views that differ, or that the wire did not carry so often.
        ambiguous: Departures and arrivals without a certain other end.
        unanswered: Departures to the wire without any join, by sending node and header.
    """

    packets: int = 0
    joined: Counter[Way] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    ambiguous: int = 0
    unanswered: Counter[tuple[str, WireHead]] = field(default_factory=Counter)


def views_of(line: Line) -> list[Line]:
    """The views in a line of type `packet` or `joined`, each with its node."""
    if line["type"] == "packet":
        return [line]
    return [{**view["packet"], "node": view["node"]} for view in line["views"]]


def all_views(lines: Iterable[Line]) -> Iterator[Line]:
    """The views in all lines."""
    for line in lines:
        if line["type"] in ("packet", "joined"):
            yield from views_of(line)


def count(lines: Iterable[Line]) -> JoinCount:
    """Counts the joins in the plugin's lines."""
    found = JoinCount()
    for line in lines:
        if line["type"] in ("packet", "joined"):
            found.packets += 1
            _add(found, views_of(line), line.get("links", ()))
    return found


def _add(found: JoinCount, views: Sequence[Line], links: Iterable[Line]) -> None:
    departed = set[int]()
    for link in links:
        if link["certainty"] == "ambiguous":
            found.ambiguous += 1
            departed.update([link["earlier"]] if "earlier" in link else ())
            continue
        earlier, later = views[link["earlier"]], views[link["later"]]
        left, came = wire_truth.departure(earlier), wire_truth.arrival(later)
        if "unexplained" in earlier:  # the recorded run ended while the packet was still in its node
            left = wire_truth.last_head(earlier)
        departed.add(link["earlier"])
        if left is None or left != came:
            found.wrong.append(f"{earlier['node']} -> {later['node']}: {left} is not {came}")
        else:
            found.joined[earlier["node"], later["node"], left] += 1
    for at, view in enumerate(views):
        if at not in departed and (head := wire_truth.departure(view)):
            found.unanswered[view["node"], head] += 1


def compare(found: JoinCount, log: Iterable[WireFrame]) -> list[str]:
    """The differences between joins and the wire's log; joins that the wire contradicts are also added to `found.wrong`."""
    carried: Counter[Way] = Counter()
    dropped: Counter[tuple[str, WireHead]] = Counter()
    for frame in log:
        head = wire_truth.head_of(frame)
        carried[frame.source, frame.target, head] += COPIES.get(frame.fate, 1)
        dropped[frame.source, head] += frame.fate is Fate.DROPPED
    for way, times in found.joined.items():
        if times > carried[way]:
            found.wrong.append(f"joined {times} times, carried {carried[way]} times: {way}")
    lost = +dropped
    lines = [f"lost on the wire and not shown as sent without arrival: {each}" for each in (lost - found.unanswered).elements()]
    return lines + [f"shown as sent without arrival, and not lost: {each}" for each in (found.unanswered - lost).elements()]
