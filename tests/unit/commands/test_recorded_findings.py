# SPDX-License-Identifier: Apache-2.0
"""Findings between nodes in captures: what was lost for certain, perhaps, and what cannot be decided."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support import two_nodes
from tests.support.builders import SECOND, Trail
from tests.support.two_nodes import BEGAN, Exchange
from tracer.cluster_findings.lost_between_nodes import NOT_SELECTED
from tracer.commands import read_nodes
from tracer.events.record import EventArray
from tracer.joining.traced_nodes import LOST_SOMETHING, NOT_SENT, NOT_TRACED
from tracer.model.finding import Finding
from tracer.model.loss import Loss
from tracer.pipeline.shutdown import StopRequest
from tracer.ui.feed import ScreenFeed

LOST_AT = BEGAN + 2 * SECOND


def found(paths: list[Path], **options: Any) -> tuple[list[Finding], str]:
    """The findings about lost packets, and the note about what is not decided; "" = none."""
    feed = ScreenFeed()
    totals = read_nodes.replayed(read_nodes.by_node(list(map(str, paths))), (), options, feed, StopRequest(0))
    assert not totals.failed
    lost = [each for each in totals.summary.findings if each.name == "lost_between_nodes"]
    shown = [each for each in feed.findings.read() if each.finding.name == "lost_between_nodes"]
    assert [each.node for each in shown] == ["node-a"] * sum(each.certain for each in lost), (
        "one that is likely is in the summary"
    )
    return lost, next((note for note in feed.notes.read() if "left for another traced node" in note), "")


def test_a_packet_that_never_came_is_lost_for_certain(tmp_path: Path) -> None:
    ((finding,), undecided) = found(two_nodes.make(tmp_path))
    assert finding.certain and finding.packets == 1 and not undecided
    assert "from node node-a to node node-b are lost between the two nodes: they left by flannel.1" in finding.cause
    texts = [proof.text for proof in finding.proofs]
    assert "10.244.2.8 is an address of pod shop/cart-b on node node-b" in texts
    assert any(text.startswith("10.244.1.0:40002 -> 10.244.2.8:8080, TCP SYN") for text in texts)


def test_nothing_is_lost_in_a_whole_exchange(tmp_path: Path) -> None:
    assert found(two_nodes.make(tmp_path, two_nodes.scene(has_loss=False))) == ([], "")


def test_a_run_by_a_service_finds_the_same(tmp_path: Path) -> None:
    ((finding,), undecided) = found(two_nodes.make(tmp_path, selectors=two_nodes.by_service()))
    assert finding.certain and not undecided


def test_clocks_that_are_apart_are_corrected(tmp_path: Path) -> None:
    """Both captures have the times of their own clocks; the clock of one is in its capture."""
    ((finding,), undecided) = found(two_nodes.make(tmp_path, offsets={"node-a": 10**9, "node-b": 10**9}))
    assert finding.certain and not undecided


def alone() -> dict[str, list[EventArray]]:
    """A packet that is lost, and nothing else that goes from one node to the other."""
    lost = Exchange(40002, 2 * SECOND, 20)
    lost.request(0, two_nodes.SYN, 2000, is_lost=True)
    other = Trail(("192.168.56.1", 7, two_nodes.NODE_B, 22), 1 << 8, BEGAN + SECOND, in_name="eth0").hook("PREROUTING")
    return {"node-a": lost.a, "node-b": [other.batch]}


def test_a_way_on_which_no_packet_came_makes_it_perhaps(tmp_path: Path) -> None:
    ((finding,), undecided) = found(two_nodes.make(tmp_path, alone()))
    assert not finding.certain and finding.cause.startswith("Perhaps packets from node node-a") and not undecided
    assert "node node-b may not show such packets" in finding.cause


@pytest.mark.parametrize(
    ("why", "made", "options"),
    [
        (NOT_TRACED, {"offsets": {}}, {}),  # it may have left 5 s earlier, before the capture of the other node began
        (LOST_SOMETHING, {"losses": {"node-b": [Loss("hook", 0, 3, "full", LOST_AT, LOST_AT + SECOND)]}}, {}),
        (LOST_SOMETHING, {"losses": {"node-b": [Loss("hook", 0, 3, "full")]}}, {}),
        (NOT_SENT, {"until": LOST_AT + SECOND}, {}),
        (NOT_TRACED, {"began": LOST_AT + SECOND}, {}),
        (NOT_SELECTED, {}, {"excluded_ports": ("9",)}),
    ],
    ids=["clocks", "loss", "loss at an unknown time", "the capture ends", "the capture begins later", "option"],
)
def test_what_a_capture_does_not_say_is_not_decided(
    tmp_path: Path, why: str, made: Mapping[str, Any], options: Mapping[str, Any]
) -> None:
    findings, undecided = found(two_nodes.make(tmp_path, **made), **options)
    assert findings == [] and why in undecided
