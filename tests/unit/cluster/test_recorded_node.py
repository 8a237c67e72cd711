# SPDX-License-Identifier: Apache-2.0
"""What a capture says about its node: what it does not say is never certain."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support import two_nodes
from tests.support.node_views import packet
from tests.support.two_nodes import BEGAN, FLANNEL_A, LAST, POD_B, PORT
from tracer.capture.format.codec import pack, to_json, unpack
from tracer.capture.format.schema import crc
from tracer.cluster.recorded_clock import NEVER, RecordedClock
from tracer.cluster.recorded_node import RecordedNode, RecordedNodes
from tracer.model.endpoints import Endpoints
from tracer.model.filter import Filter, parse_host
from tracer.selection import stored_kernel_filter
from tracer.selection.display_filter import DisplayFilter

ARRIVES = Endpoints(FLANNEL_A, 40002, POD_B, PORT)
CLOCK = 10**18
"""The times of packets of the invented machine, less CLOCK_MONOTONIC, ns."""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return two_nodes.make(tmp_path_factory.mktemp("captures"))[1]


def read(path: Path) -> RecordedNode:
    return RecordedNodes.read({"node-b": [str(path)]}).nodes["node-b"]


def covers(node: RecordedNode, ends: Endpoints = ARRIVES) -> bool:
    return node.covers("node-b", packet(ends=ends), ends)


def changed(path: Path, target: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """A copy of a capture with another `meta`."""
    target.write_bytes(path.read_bytes())
    with sqlite3.connect(target) as connection:
        found = {name: unpack(value) for name, value in connection.execute("SELECT name, value FROM meta")}
        before = set(found)
        change(found)
        for name in before - set(found):
            connection.execute("DELETE FROM meta WHERE name = ?", (name,))
        found["parts"] = len(found)
        for name, value in found.items():
            body = pack(value)
            connection.execute("UPDATE meta SET value = ?, crc = ? WHERE name = ?", (body, crc((name, body)), name))
    return target


def filtered(path: Path, target: Path, **values: Any) -> RecordedNode:
    """A node of which the kernel's filter was another one."""
    stored = stored_kernel_filter.encoded(Filter(**values))
    return read(changed(path, target, lambda meta: meta.update(filter=to_json(stored))))


def test_a_capture_says_since_when_and_what_it_shows(path: Path) -> None:
    node = read(path)
    assert node.is_whole and node.clock.begun(LAST) == CLOCK + BEGAN + 50_000 and covers(node)
    assert node.clock.read(0) == (0, 50_000)


def test_objects_of_all_captures_are_kept(path: Path) -> None:
    found = RecordedNodes.read({"node-a": [str(path.with_name("node-a.k8st"))], "node-b": [str(path)]})
    assert found.store.pod_at(POD_B) == ("shop", "cart-b", "node-b")
    assert found.store.by_node_ip.all(two_nodes.NODE_B)[0].name == "node-b"


def test_the_filter_of_the_kernel_decides(path: Path, tmp_path: Path) -> None:
    for number, (values, is_covered) in enumerate(
        (
            ({"ports": (PORT,)}, True),
            ({"ports": (80,)}, False),
            ({"hosts": (parse_host("10.244.2.0/24"),)}, True),
            ({"sources": (parse_host(POD_B),)}, False),
            ({"destinations": (parse_host(POD_B),), "protocol": 6, "family": 4}, True),
            ({"protocol": 17}, False),
            ({"netns": 5}, False),
            ({"ifindex": 3}, False),
            ({"drops_only": True}, False),
            ({"excluded_ports": (9,)}, False),
            ({"protocol": 89}, False),
        )
    ):
        assert covers(filtered(path, tmp_path / f"{number}.k8st", **values)) is is_covered, values  # type: ignore[arg-type]


def test_what_a_capture_does_not_say_is_not_covered(path: Path, tmp_path: Path) -> None:
    def options(**values: Any) -> Callable[[dict[str, Any]], None]:
        def change(meta: dict[str, Any]) -> None:
            held = dict(meta["options"]["dict"])
            meta["options"] = {"dict": [[k, v] for k, v in {**held, **values}.items()]}

        return change

    words = to_json({"services": ("shop/none",)})
    for number, change in enumerate(
        (
            lambda meta: meta.pop("filter"),
            lambda meta: meta.pop("options"),
            lambda meta: meta.update(filter=to_json({"ports": ("x",)})),
            lambda meta: meta.update(filter=to_json([1])),
            lambda meta: meta.update(filter=to_json({"hosts": ["no address"]})),
            options(count=5),
            options(drops_only=True),
            options(follow=True),
            options(words=words),
        )
    ):
        node = read(changed(path, tmp_path / f"{number}.k8st", change))
        assert not covers(node), number


def test_conditions_that_user_space_evaluates_hide_packets(tmp_path: Path) -> None:
    paths = two_nodes.make(tmp_path, conditions=DisplayFilter(excluded_ports=frozenset({9})))
    assert not covers(read(paths[1]))


def test_names_are_looked_up_among_the_objects_of_the_capture(tmp_path: Path) -> None:
    node = read(two_nodes.make(tmp_path, selectors=two_nodes.by_service())[1])
    assert covers(node) and node.covers.is_by_name
    assert not covers(node, Endpoints(FLANNEL_A, 40002, POD_B, 9090))


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM records WHERE seq = 2",
        "UPDATE records SET crc = 1 WHERE seq = 2",
        "UPDATE batches SET crc = 1",
        "UPDATE batches SET turn = 7, crc = 1",
    ],
)
def test_a_damaged_capture_is_not_whole(path: Path, tmp_path: Path, statement: str) -> None:
    target = tmp_path / "a.k8st"
    target.write_bytes(path.read_bytes())
    with sqlite3.connect(target) as connection:
        connection.execute(statement)
    assert not read(target).is_whole


def test_a_hole_between_batches_is_seen(path: Path, tmp_path: Path) -> None:
    target = tmp_path / "a.k8st"
    target.write_bytes(path.read_bytes())
    with sqlite3.connect(target) as connection:
        rows = connection.execute("SELECT turn, began, ended, events, turns, slots FROM batches").fetchall()
        later = (rows[-1][0] + 20, *rows[-1][1:])
        connection.execute(
            "INSERT INTO batches (turn, began, ended, events, turns, slots, crc) VALUES (?, ?, ?, ?, ?, ?, ?)",
            (*later, crc(later)),
        )
    assert not read(target).is_whole


def test_a_clock_without_a_beginning_has_no_packets_for_certain() -> None:
    assert RecordedClock(5, 1).begun(0) == NEVER and RecordedClock(None, 0, 9).begun(0) == 9
    assert RecordedClock(5, 1, 9).begun(0) == 15
