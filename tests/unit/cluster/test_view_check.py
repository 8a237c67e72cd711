# SPDX-License-Identifier: Apache-2.0
"""What the check of `top` over a real cluster accepts, and what it does not."""

from __future__ import annotations

import pytest

from tests.cluster.views import Line, problem_of

NODES = ("node-a", "node-b")


def line(total: int, nodes: int = 2, hop: str = "node-a", **rows: int) -> Line:
    """One interval, with the packets of each node."""
    return {
        "total": {"packets": total, "hops": [{"node": hop}]},
        "nodes": nodes,
        "rows": [{"key": name.replace("_", "-"), "packets": count} for name, count in rows.items()],
    }


def test_packets_of_two_nodes_that_are_counted_once_are_accepted() -> None:
    assert not problem_of([line(4, node_a=4), line(3, node_a=2, node_b=3)], NODES, 6)


@pytest.mark.parametrize(
    ("found", "problem"),
    [
        (line(9, node_a=5, node_b=4), "have to be counted once"),
        (line(5, node_a=5), "a node has no packet"),
        (line(5, node_a=5, node_b=4, node_x=1), "a row of node-x"),
        (line(2, node_a=2, node_b=2), "have to be counted once"),
        (line(6, 1, node_a=5, node_b=4), "the number of nodes is not 2"),
        (line(6, hop="", node_a=5, node_b=4), "a time has no node"),
    ],
)
def test_anything_else_is_a_problem(found: Line, problem: str) -> None:
    assert problem in problem_of([found], NODES, 6)
