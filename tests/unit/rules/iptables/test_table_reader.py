# SPDX-License-Identifier: Apache-2.0
"""The reader's thread: what it hands back for what it could and could not read."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.blobs import R, build
from tests.support.waiting import until
from tracer.node import netns
from tracer.rules.iptables import sockopt, table_reader
from tracer.rules.iptables.table_reader import TableReader, TableRequest, TableSnapshot
from tracer.util.worker import user_warnings

FILTER = TableRequest(7, "ip", "filter")
TEXT = ":INPUT ACCEPT\n-A INPUT -j DROP\n"


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """A machine's rules; a list is what one reading after the other finds."""
    known: dict[str, object] = {"tables": ["filter"], "rules": [[R("DROP")]], "text": TEXT}

    def read(family: str, table: str, room: int = 0) -> sockopt.RawTable:
        found = known["rules"]
        assert isinstance(found, list)
        blob = build({"INPUT": found.pop(0) if len(found) > 1 else found[0]}, family, table)
        return sockopt.RawTable(bytearray(blob.data), blob.hooks, blob.underflows)

    def save(family: str, table: str) -> object:
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


def ask(*wanted: TableRequest, path: str | None = "/here", count: int = 1) -> list[TableSnapshot]:
    def leads_to(inode: int) -> Path:
        if path is None:
            raise LookupError(inode)
        return Path(path)

    it = TableReader(leads_to)
    for one in wanted:
        it.request(one)
    found: list[TableSnapshot] = []

    def all_found() -> bool:
        found.extend(it.read())
        return len(found) >= count

    until(all_found)
    it.close()
    assert not [t for t in threading.enumerate() if t.name == "rules"]
    return found


def test_rules_with_their_text(node: dict[str, object]) -> None:
    (one,) = ask(FILTER)
    assert one.table and not one.why and one.began < one.ended
    assert [(r.chain, r.number, r.text) for r in one.rules.values()] == [("INPUT", 1, "-j DROP")]


def test_all_tables_that_are_there(node: dict[str, object]) -> None:
    everything = TableRequest(7, "ip", "")
    assert [r.request for r in ask(everything, count=2)] == [FILTER, everything]
    node["tables"] = []
    assert [r.request for r in ask(everything)] == [everything]


def test_rules_that_changed_meanwhile_are_read_again(node: dict[str, object]) -> None:
    node["rules"] = [[R("ACCEPT")], [R("DROP")], [R("DROP")]]
    (one,) = ask(FILTER)
    assert [r.target for r in one.rules.values()] == ["DROP"]


def test_rules_that_change_all_the_time(node: dict[str, object]) -> None:
    node["rules"] = [[R("DROP")], [R("ACCEPT")]] * table_reader.TRIES
    (one,) = ask(FILTER)
    assert (one.table, one.why) == (None, "they changed while they were read")


@pytest.mark.parametrize("text", [None, OSError, ":INPUT ACCEPT\n-A INPUT -j ACCEPT\n"])
def test_without_a_text_the_rules_are_known_all_the_same(node: dict[str, object], text: object) -> None:
    node["text"] = text
    (one,) = ask(FILTER)
    assert [(r.target, r.text) for r in one.rules.values()] == [("DROP", "")]


def test_what_is_not_there(node: dict[str, object]) -> None:
    assert ask(FILTER, path=None)[0].why == "the network namespace is gone"
    assert "gone" in ask(FILTER, path="/gone")[0].why
    node["tables"] = ["nat"]
    assert "there is no table filter any more" in ask(FILTER)[0].why


def test_more_rules_than_are_read_are_said(node: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Once for each table; the others are read."""

    def read(family: str, table: str, room: int = 0) -> sockopt.RawTable:
        raise sockopt.TooManyEntries(600_000, f"the table has 600000 rules, room {room}")

    user_warnings.read()
    monkeypatch.setattr(user_warnings, "_keys", set())
    with monkeypatch.context() as context:
        context.setattr(sockopt, "read", read)
        one, two = ask(FILTER, FILTER, count=2)
    assert one.table is None and one.why == f"they are not read: the table has 600000 rules, room {sockopt.MOST_BYTES}"
    assert two.why == one.why
    (said,) = user_warnings.read()
    assert said.startswith("The rules of table filter of iptables in network namespace 7 (/here) are not read and not shown")
    (again,) = ask(FILTER)
    assert again.table


def test_one_container_does_not_take_the_room_of_the_node(node: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_reader, "TOTAL_BYTES", 10_000)
    it = TableReader(lambda inode: Path("/here"))
    it._own_namespaces = {1}
    for number in range(2, 12):
        it._sizes[TableRequest(number, "ip", "filter")] = 1000
    assert it._max_bytes(TableRequest(99, "ip", "filter")) == 0
    assert it._max_bytes(TableRequest(1, "ip", "nat")) == sockopt.MOST_BYTES
    assert it._max_bytes(TableRequest(2, "ip", "filter")) == 1000, "its own size is not counted twice"
    it._forget(2)
    assert it._max_bytes(TableRequest(99, "ip", "filter")) == 1000
    it.close()
