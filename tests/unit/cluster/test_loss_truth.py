# SPDX-License-Identifier: Apache-2.0
"""The comparison of what is called lost with the log of the wire."""

from __future__ import annotations

from typing import Any

import pytest

import tests.cluster  # noqa: F401  # the path of lab
from lab.wire import Fate
from tests.cluster import loss_truth
from tests.cluster.loss_truth import LossCount
from tests.support.node_views import view
from tests.support.traced_clusters import TracedCluster
from tests.unit.cluster.test_wire_truth import SENT, frame

Line = dict[str, Any]


def finding(count: int = 1, numbers: tuple[int, ...] = (5,), **fields: Any) -> Line:
    text = "Packets from node node-a to node node-b are lost between the two nodes: they left by flannel.1."
    values = {"text": text, "certain": True, "count": count, "packets": list(numbers)}
    return {"type": "finding", "name": "lost_between_nodes"} | values | fields


def summary(*findings: Line) -> Line:
    return {"type": "summary", "findings": list(findings)}


LOST = {**SENT, "number": 5}


def test_a_packet_that_the_wire_dropped_is_lost() -> None:
    lines = [LOST, finding(), {"type": "summary", "node": "node-a", "findings": []}, summary(finding())]
    assert loss_truth.compare(lines, [frame(Fate.DROPPED)]) == LossCount(certain=1)


@pytest.mark.parametrize("fate", [Fate.CARRIED, Fate.HELD, Fate.DOUBLED])
def test_a_packet_that_the_wire_carried_is_wrongly_called_lost(fate: Fate) -> None:
    for lines in ([LOST, finding(), summary(finding())], [LOST, finding()], [LOST, summary(finding(certain=False))]):
        found = loss_truth.compare(lines, [frame(fate)])
        assert len(found.wrong) == 2 and "not dropped there" in found.wrong[0] and "dropped 0 times" in found.wrong[1]


def test_another_packet_was_dropped() -> None:
    found = loss_truth.compare([LOST, summary(finding())], [frame(Fate.DROPPED, ip_id=98)])
    assert len(found.wrong) == 1 and "not dropped there" in found.wrong[0]


def test_more_were_called_lost_than_were_dropped() -> None:
    lines = [LOST, summary(finding(count=2, numbers=(5, 5)))]
    found = loss_truth.compare(lines, [frame(Fate.DROPPED)])
    assert len(found.wrong) == 2 and "called lost 2 times, dropped 1 times" in found.wrong[1]
    found = loss_truth.compare([LOST, summary(finding(count=3))], [frame(Fate.DROPPED), frame(Fate.DROPPED, ip_id=3)])
    assert found.wrong == ["called lost 3 times, dropped 2 times: node-a -> node-b"]


def test_fewer_may_be_called_lost() -> None:
    assert loss_truth.compare([LOST, summary()], [frame(Fate.DROPPED)]) == LossCount()
    likely = loss_truth.compare([LOST, summary(finding(certain=False))], [frame(Fate.DROPPED)] * 2)
    assert likely == LossCount(likely=1)


def test_a_packet_that_was_not_shown_is_wrongly_called_lost() -> None:
    found = loss_truth.compare([summary(finding())], [frame(Fate.DROPPED)])
    assert found.wrong == ["called lost on the way node-a -> node-b, and not shown to leave: packet 5"]


def test_other_findings_are_not_compared() -> None:
    assert loss_truth.compare([summary(finding(name="mtu"))], []) == LossCount()


def test_the_sentence_of_the_finding_names_both_nodes() -> None:
    for views in ([view("a")], [view("a", -1_000_000_000, ident=1), view("b", -999_900_000, "in", ident=1), view("a")]):
        (found,) = TracedCluster().settle(*views)
        line = finding(text=found.cause)
        assert "names no nodes" not in str(loss_truth.compare([summary(line)], []).wrong)
    assert "names no nodes" in loss_truth.compare([summary(finding(text="?"))], []).wrong[0]
