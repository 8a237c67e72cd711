# SPDX-License-Identifier: Apache-2.0
"""The reader's thread: its answers for tables that it could read and for tables that it could not read."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.blobs import R, build
from tests.support.waiting import until
from tracer.node import netns
from tracer.rules import unprinted_rules
from tracer.rules.iptables import sockopt, table_reader
from tracer.rules.iptables.table_reader import TableReader, TableRequest, TableSnapshot
from tracer.util.worker import user_warnings

FILTER = TableRequest(7, "ip", "filter")
TEXT = ":INPUT ACCEPT\n-A INPUT -j DROP\n"


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """A machine's rules; a list has the results of successive readings."""
    known: dict[str, object] = {"tables": ["filter"], "rules": [[R("DROP")]], "text": TEXT, "printed": 0}

    def read(family: str, table: str, room: int = 0) -> sockopt.RawTable:
        found = known["rules"]
        assert isinstance(found, list)
        blob = build({"INPUT": found.pop(0) if len(found) > 1 else found[0]}, family, table)
        return sockopt.RawTable(bytearray(blob.data), blob.hooks, blob.underflows)

    def save(family: str, table: str, watch: object) -> object:
        known["printed"] = int(str(known["printed"])) + 1
        if known["text"] is OSError:
            raise OSError("no")
        return known["text"]

    @contextmanager
    def entered(path: Path) -> Iterator[None]:
        if path == Path("/gone"):
            raise OSError("gone")
        yield

    monkeypatch.setattr(sockopt, "read", read)
    monkeypatch.setattr(sockopt, "save", save)
    monkeypatch.setattr(netns, "entered", entered)
    monkeypatch.setattr(sockopt, "present", lambda family: known["tables"])
    return known


def read_tables(*requests: TableRequest, path: str | None = "/here", count: int = 1) -> list[TableSnapshot]:
    def find_path(inode: int) -> Path:
        if path is None:
            raise LookupError(inode)
        return Path(path)

    reader = TableReader(find_path)
    for request in requests:
        reader.request(request)
    found: list[TableSnapshot] = []

    def all_found() -> bool:
        found.extend(reader.read())
        return len(found) >= count

    until(all_found)
    reader.close()
    assert not [t for t in threading.enumerate() if t.name == "rules"]
    return found


def test_rules_with_their_text(node: dict[str, object]) -> None:
    (snapshot,) = read_tables(FILTER)
    assert snapshot.table and not snapshot.why and snapshot.began < snapshot.ended
    assert [(r.chain, r.number, r.text) for r in snapshot.rules.values()] == [("INPUT", 1, "-j DROP")]


def test_all_tables_that_are_there(node: dict[str, object]) -> None:
    everything = TableRequest(7, "ip", "")
    assert [r.request for r in read_tables(everything, count=2)] == [FILTER, everything]
    node["tables"] = []
    assert [r.request for r in read_tables(everything)] == [everything]


def test_rules_that_change_while_they_are_printed_are_known(node: dict[str, object]) -> None:
    """The text may be that of the later rules, so it is made of the rules that were read before."""
    node["rules"] = [[R("ACCEPT")], [R("DROP")]]
    before = time.monotonic_ns()
    (snapshot,) = read_tables(FILTER)
    assert [(r.target, r.text) for r in snapshot.rules.values()] == [("ACCEPT", "-j ACCEPT")] and not snapshot.why
    assert before < snapshot.began < snapshot.ended and node["printed"] == 1


def test_rules_that_change_often_are_read_without_the_tool(node: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unprinted_rules, "UNPRINTED_TIMES", 1_000_000)
    node["rules"] = [[R("DROP")], [R("ACCEPT")], [R("RETURN")], [R("DROP")]]
    snapshots = read_tables(FILTER, FILTER, FILTER, count=3)
    texts = [[r.text for r in snapshot.rules.values()] for snapshot in snapshots]
    assert (texts, node["printed"]) == ([["-j DROP"], ["-j RETURN"], ["-j DROP"]], 1)


def test_the_tool_is_used_again_later(node: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unprinted_rules, "UNPRINTED_TIMES", 0)
    node["rules"] = [[R("ACCEPT")], [R("DROP")]]
    read_tables(FILTER, FILTER, count=2)
    assert node["printed"] == 2


def test_rules_that_only_the_tool_can_print(node: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unprinted_rules, "UNPRINTED_TIMES", 1_000_000)
    node["rules"] = [[R("LOG")], [R("LOG", src="10.0.0.0/8")]]
    node["text"] = ":INPUT ACCEPT\n-A INPUT -s 10.0.0.0/8 -j LOG\n"
    snapshots = read_tables(FILTER, FILTER, count=2)
    texts = [[r.text for r in snapshot.rules.values()] for snapshot in snapshots]
    assert (texts, node["printed"]) == ([[""], ["-s 10.0.0.0/8 -j LOG"]], 2)


@pytest.mark.parametrize("text", [None, OSError, ":INPUT ACCEPT\n-A INPUT -j ACCEPT\n"])
def test_without_a_text_the_rules_are_still_known(node: dict[str, object], text: object) -> None:
    node["text"] = text
    (snapshot,) = read_tables(FILTER)
    assert [(r.target, r.text) for r in snapshot.rules.values()] == [("DROP", "-j DROP")]


def test_missing_namespaces_and_tables(node: dict[str, object]) -> None:
    assert read_tables(FILTER, path=None)[0].why == "the network namespace is gone"
    assert "gone" in read_tables(FILTER, path="/gone")[0].why
    node["tables"] = ["nat"]
    assert "there is no table filter any more" in read_tables(FILTER)[0].why


def test_a_table_with_too_many_rules_is_reported(node: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Once for each table; other tables are read."""

    def read(family: str, table: str, room: int = 0) -> sockopt.RawTable:
        raise sockopt.TooManyEntries(600_000, f"the table has 600000 rules, room {room}")

    user_warnings.read()
    monkeypatch.setattr(user_warnings, "_keys", set())
    with monkeypatch.context() as context:
        context.setattr(sockopt, "read", read)
        snapshot, second = read_tables(FILTER, FILTER, count=2)
    assert (
        snapshot.table is None and snapshot.why == f"they are not read: the table has 600000 rules, room {sockopt.MOST_BYTES}"
    )
    assert second.why == snapshot.why
    (warning,) = user_warnings.read()
    assert warning.startswith("The rules of table filter of iptables in network namespace 7 (/here) are not read and not shown")
    (later,) = read_tables(FILTER)
    assert later.table


def test_one_container_does_not_use_up_the_room_of_the_node(node: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_reader, "TOTAL_BYTES", 10_000)
    reader = TableReader(lambda inode: Path("/here"))
    reader._own_namespaces = {1}
    for number in range(2, 12):
        reader._sizes[TableRequest(number, "ip", "filter")] = 1000
    assert reader._max_bytes(TableRequest(99, "ip", "filter")) == 0
    assert reader._max_bytes(TableRequest(1, "ip", "nat")) == sockopt.MOST_BYTES
    assert reader._max_bytes(TableRequest(2, "ip", "filter")) == 1000, "its own size is not counted twice"
    reader._forget(2)
    assert reader._max_bytes(TableRequest(99, "ip", "filter")) == 1000
    reader.close()


def test_removed_namespaces_do_not_use_up_the_room(node: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Containers come and go, each with a table; no event reports that a namespace was removed."""
    monkeypatch.setattr(table_reader, "TOTAL_BYTES", sockopt.MOST_BYTES + 10_000)
    monkeypatch.setattr(table_reader, "SIZES_KEPT", 1000)

    def path(inode: int) -> Path:
        if inode < 5000:
            raise LookupError(inode)
        return Path("/here")

    reader = TableReader(path)
    reader._own_namespaces = {1}
    for number in range(2, 5100):
        room = reader._max_bytes(TableRequest(number, "ip", "filter"))
        reader._sizes[TableRequest(number, "ip", "filter")] = 1000
        assert len(reader._sizes) <= 1000 and (number > 5000 or room == sockopt.MOST_BYTES), number
    reader.close()
