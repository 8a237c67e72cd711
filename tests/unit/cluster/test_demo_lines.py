# SPDX-License-Identifier: Apache-2.0
"""When the demonstration of two nodes has shown what it wants to show."""

from __future__ import annotations

import json
from pathlib import Path

import tests.cluster  # noqa: F401  # the path of lab
from cluster_scene import objects
from cluster_scene.plan import ClusterPlan
from tests.cluster import demo
from tests.unit.cluster.test_join_truth import LINK, joined
from tests.unit.cluster.test_wire_truth import SENT
from tracer.cluster import node_choice
from tracer.cluster.node_choice import NodeRequest
from tracer.kube.catalog import ClusterView
from tracer.kube.selectors import Selectors


def test_packets_that_both_nodes_saw_in_each_direction_have_crossed() -> None:
    there = joined(LINK)
    back = {**there, "views": there["views"][::-1]}
    assert demo.has_crossed([SENT, there, back])
    assert not demo.has_crossed([SENT, there]) and not demo.has_crossed([back, {**there, "views": [{"node": "node-a"}]}])


def test_lines_that_are_not_whole_are_read_later(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    assert demo.read_lines(path) == []
    path.write_text(json.dumps(SENT) + '\n{"type": "pack')
    assert demo.read_lines(path) == [SENT]


def test_the_demonstration_traces_both_nodes_and_asks_the_other_one() -> None:
    plan, view = ClusterPlan.of(demo.NODES), ClusterView()
    view.store.load(objects.all_objects(plan))
    words = dict(zip(demo.OPTIONS[::2], demo.OPTIONS[1::2], strict=True))
    request = NodeRequest(clients=(words["--from"],), selectors=Selectors(services=(words["--service"],)))
    assert node_choice.choose(request, view) == list(demo.NODES)
    ends = view.store.endpoints.all((demo.SERVICE, "tcp")) or [e for e in view.store.endpoints.values() if e.pod[1] == "cart-b"]
    assert {end.node for end in ends} == {demo.NODES[-1]}
