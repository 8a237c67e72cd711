# SPDX-License-Identifier: Apache-2.0
"""The comparison of joins with the log of the wire."""

from __future__ import annotations

from typing import Any

import tests.cluster  # noqa: F401  # the path of lab
from lab.wire import Fate, WireFrame
from tests.cluster import join_truth
from tests.unit.cluster.test_wire_truth import COME, KEY, SENT, frame

LINK = {"key": "header", "certainty": "observed", "candidates": 1, "earlier": 0, "later": 1}


def joined(*links: dict[str, Any], come: dict[str, Any] = COME) -> dict[str, Any]:
    views = [{"node": view["node"], "packet": view} for view in (SENT, come)]
    return {"type": "joined", "views": views, "links": list(links), "complete": True}


def differences(lines: list[dict[str, Any]], *frames: WireFrame) -> tuple[join_truth.JoinCount, list[str]]:
    found = join_truth.count(lines)
    return found, join_truth.compare(found, frames)


def test_a_join_that_the_wire_carried_is_right() -> None:
    found, lines = differences([joined(LINK)], frame(Fate.CARRIED))
    assert sum(found.joined.values()) == 1 and not found.wrong and not lines


def test_a_join_that_the_wire_did_not_carry_is_wrong() -> None:
    found, _ = differences([joined(LINK)], frame(Fate.DROPPED))
    assert len(found.wrong) == 1 and "carried 0 times" in found.wrong[0]


def test_a_join_of_two_different_headers_is_wrong() -> None:
    found, _ = differences([joined(LINK, come={**COME, "ip_id": 7})], frame(Fate.CARRIED))
    assert len(found.wrong) == 1 and "is not" in found.wrong[0]


def test_a_lost_packet_is_a_departure_without_arrival() -> None:
    assert differences([SENT], frame(Fate.DROPPED)) == (join_truth.count([SENT]), [])
    _, lines = differences([SENT], frame(Fate.CARRIED))
    assert len(lines) == 1 and lines[0].startswith("shown as sent without arrival, and not lost")
    _, lines = differences([], frame(Fate.DROPPED))
    assert len(lines) == 1 and lines[0].startswith("lost on the wire and not shown")


def test_what_is_ambiguous_is_neither_joined_nor_lost() -> None:
    ambiguous = {"key": "payload", "certainty": "ambiguous", "candidates": 2, "earlier": 0}
    line = {**joined(ambiguous), "views": [{"node": "node-a", "packet": SENT}]}
    found, lines = differences([line], frame(Fate.DOUBLED))
    assert (found.ambiguous, sum(found.joined.values()), found.wrong, lines) == (1, 0, [], [])
    assert KEY.ip_id == SENT["ip_id"]
