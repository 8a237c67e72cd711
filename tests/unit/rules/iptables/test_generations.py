# SPDX-License-Identifier: Apache-2.0
"""The generation of rules of an event, and the reason that is shown when that generation could not be read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.support.blobs import R, build
from tests.support.builders import NODE, POD, Ends, event
from tests.support.table_generations import READER_THREAD, FakeTableReader, new_generations
from tracer.events import record, table_trace
from tracer.events.record import Event, Kind
from tracer.events.table_trace import WATCHED, TableLookup, TableReplaced, TableTrace
from tracer.rules.iptables import generation, lookup_history, path_cache, request_queue
from tracer.rules.iptables.generations import FORGOTTEN, GONE, TableGenerations
from tracer.rules.iptables.path_search import TARGET, TRUE
from tracer.rules.iptables.save_join import SavedRules
from tracer.rules.iptables.table_reader import TableRequest, TableSnapshot

CLIENT: Ends = ("192.168.56.1", 40812, "192.168.56.10", 30285)
FILTER = TableRequest(NODE, "ip", "filter")
OLD, NEW = 0x1000, 0x2000


def reading(*rules: R, began: int = 100, ended: int = 200, request: TableRequest = FILTER, why: str = "") -> TableSnapshot:
    if why:
        return TableSnapshot(request, READER_THREAD, began, ended, why=why)
    table = build({"INPUT": [*rules], "FORWARD": [], "OUTPUT": []}).table()
    return TableSnapshot(request, READER_THREAD, began, ended, table, SavedRules(table, None))


def lookup(time: int, address: int = OLD, thread: int = READER_THREAD, netns: int = NODE) -> TableLookup:
    return TableLookup(time, thread, netns, "ip", "filter", address)


def table(time: int = 300, address: int = OLD, watched: int = WATCHED, **fields: Any) -> Event:
    given = {"netns": NODE, "header": CLIENT, "protocol": 6, "pf": 2, "hook": "INPUT", "table": "filter", **fields}
    return record.event(event("TABLE", time=time, object=address, state=watched, **given)[0])


def finish(node: TableGenerations, reader: FakeTableReader, done: TableSnapshot, *changes: TableLookup | TableReplaced) -> None:
    """Ends a reading; its look-ups come with the next drain."""
    reader.ready.append(done)
    node.add_changes([])
    node.add_changes(changes)


def verdicts(node: TableGenerations, e: Event, *table_traces: TableTrace) -> list[str] | str:
    trace = node.reconstruct(e, list(table_traces))
    return trace.undecided or [v.verdict for v in trace.hits]


def test_rules_are_read_when_a_packet_met_them() -> None:
    node, reader = new_generations()
    e = table()
    node.request_for(e)
    assert reader.requests == [FILTER]
    assert node.is_waiting_for(e)
    finish(node, reader, reading(R("ACCEPT")), lookup(110), lookup(190))
    assert not node.is_waiting_for(e)
    assert verdicts(node, e) == ["ACCEPT"]
    assert reader.requests == [FILTER], "once"


def test_an_event_of_replaced_rules_gets_the_replaced_rules() -> None:
    node, reader = new_generations()
    node.request(FILTER)
    finish(node, reader, reading(R("ACCEPT")), lookup(110))
    node.add_changes([lookup(900, OLD, thread=5), TableReplaced(1000, 5, OLD, NEW)])
    assert reader.requests == [FILTER, FILTER], "the new ones are read at once"
    finish(node, reader, reading(R(""), R("ACCEPT"), began=1100, ended=1200), lookup(1110, NEW))
    assert verdicts(node, table(300)) == ["ACCEPT"]
    assert verdicts(node, table(1300, NEW)) == ["", "ACCEPT"]
    assert verdicts(node, table(995, NEW)) == ["", "ACCEPT"], "in force just before the event of the replacement"


def test_an_address_that_is_used_again() -> None:
    node, reader = new_generations()
    node.request(FILTER)
    finish(node, reader, reading(R("ACCEPT")), lookup(110))
    node.add_changes(
        [lookup(900, thread=5), TableReplaced(1000, 5, OLD, NEW), lookup(1900, NEW, thread=5), TableReplaced(2000, 5, NEW, OLD)]
    )
    assert verdicts(node, table(300)) == ["ACCEPT"]
    assert verdicts(node, table(1500, NEW)) == GONE
    assert node.is_waiting_for(table(2500, OLD))
    finish(node, reader, reading(R(""), R("ACCEPT"), began=2100, ended=2200), lookup(2110, OLD))
    assert verdicts(node, table(2500, OLD)) == ["", "ACCEPT"]
    assert verdicts(node, table(300)) == ["ACCEPT"], "the first generation is still known"


def test_rules_replaced_while_they_were_read_are_not_used() -> None:
    node, reader = new_generations()
    node.request(FILTER)
    finish(
        node,
        reader,
        reading(R("ACCEPT")),
        lookup(110),
        lookup(120, thread=5),
        TableReplaced(130, 5, OLD, NEW),
        lookup(190, NEW),
    )
    assert verdicts(node, table(105)) == GONE
    assert node.is_waiting_for(table(300, NEW)), "they are being read again"


def test_rules_replaced_after_their_last_look_up_belong_to_the_generation_that_was_looked_up() -> None:
    """They are replaced before the reading has ended, and their address stands for other rules before the reading is taken."""
    node, reader = new_generations()
    node.request(FILTER)
    finish(
        node,
        reader,
        reading(R("ACCEPT")),
        lookup(110),
        lookup(150),
        lookup(180, thread=5),
        TableReplaced(190, 5, OLD, NEW),
        lookup(900, NEW, thread=5),
        TableReplaced(1000, 5, NEW, OLD),
    )
    assert verdicts(node, table(120)) == ["ACCEPT"]
    assert isinstance(verdicts(node, table(1100)), str), "other rules, which have not been read"


def test_an_address_that_stood_for_other_rules_between_two_look_ups_proves_nothing() -> None:
    node, reader = new_generations()
    node.request(FILTER)
    changes = (TableReplaced(130, 5, OLD, NEW), lookup(140, NEW, thread=5), TableReplaced(150, 5, NEW, OLD))
    finish(node, reader, reading(R("ACCEPT")), lookup(110), lookup(120, thread=5), *changes, lookup(190))
    assert isinstance(verdicts(node, table(300)), str)


def test_rules_that_were_read_just_before_they_were_replaced() -> None:
    """The snapshot arrives after the replacement: the run of iptables-save takes long."""
    node, reader = new_generations()
    e = table(190)
    assert node.is_waiting_for(e)
    node.add_changes([lookup(110), lookup(195, OLD, thread=5), TableReplaced(196, 5, OLD, NEW)])
    assert node.is_waiting_for(e) and not node.is_settled(e)
    finish(node, reader, reading(R("ACCEPT"), ended=150))
    assert node.is_settled(e) and verdicts(node, e) == ["ACCEPT"]


def test_a_packet_does_not_wait_for_a_reading_after_the_replacement() -> None:
    node, reader = new_generations()
    assert node.is_waiting_for(table())
    node.add_changes([lookup(105, OLD, thread=5), TableReplaced(106, 5, OLD, NEW)])
    finish(node, reader, reading(R(""), R("ACCEPT"), began=110), lookup(111, NEW))
    e = table(104)
    assert not node.is_waiting_for(e) and node.is_settled(e)
    assert verdicts(node, e) == GONE and verdicts(node, table(107, NEW)) == ["", "ACCEPT"]


def test_the_snapshots_of_all_tables_answer_no_later_request() -> None:
    """All tables are requested at the start of a run, and the first packet requests its table before they have been read."""
    node, reader = new_generations()
    all_tables = TableRequest(NODE, "ip", "")
    node.request(all_tables)
    node.request_for(table())
    reader.ready += [reading(R("ACCEPT")), TableSnapshot(all_tables, 0, 0, 0)]
    node.add_changes([])
    node.add_changes([lookup(110), lookup(310)])
    assert node.is_reading and verdicts(node, table()) == ["ACCEPT"]
    finish(node, reader, reading(R(""), R("ACCEPT"), began=300, ended=400))
    assert not node.is_reading and verdicts(node, table()) == ["", "ACCEPT"], "its look-ups were kept"


def test_rules_that_were_replaced_before_they_were_read() -> None:
    node, _ = new_generations()
    node.add_changes([TableReplaced(1000, 5, OLD, NEW)])
    e = table(300)
    node.request_for(e)
    assert not node.is_waiting_for(e)
    assert verdicts(node, e) == GONE


def test_other_readers_look_ups_prove_nothing() -> None:
    node, reader = new_generations()
    e = table()
    node.request_for(e)
    finish(node, reader, reading(R("ACCEPT")), lookup(110, thread=5), lookup(110, netns=POD), lookup(500))
    assert verdicts(node, e) == "it is not known which generation of the rules was read"


def test_a_table_that_cannot_be_read_is_not_requested_for_ever() -> None:
    node, reader = new_generations()
    e = table()
    for _ in range(20):
        node.request_for(e)
        if reader.requests and node.is_waiting_for(e):
            finish(node, reader, reading(why="they could not be read (no)"), lookup(110))
    assert 1 < len(reader.requests) < 10
    assert verdicts(node, e) == "they could not be read (no)"


@pytest.mark.parametrize(
    ("watched", "why"),
    [
        (0, "the table was not watched while it ran"),
        (WATCHED | 64, "the rules were replaced while the packet was in them"),
        (WATCHED | 1, "a part of the table's trace was lost"),
    ],
)
def test_a_table_run_that_was_not_seen_whole(watched: int, why: str) -> None:
    node, reader = new_generations()
    node.request(FILTER)
    finish(node, reader, reading(R("ACCEPT")), lookup(110))
    assert verdicts(node, table(watched=watched)) == why


def test_the_steps_of_a_table_trace_are_joined() -> None:
    node, reader = new_generations()
    node.request(FILTER)
    done = reading(R("DNAT", data=bytes(40), revision=2))
    finish(node, reader, done, lookup(110))
    assert done.table
    at = done.table.rules("INPUT")[0].target.at
    assert verdicts(node, table(watched=WATCHED + 1), TableTrace(0, 1, 0, (), ((at, TARGET),))) == ["DNAT"]
    assert verdicts(node, table(watched=WATCHED + 1), TableTrace(0, 1, 0, (), ((at, TRUE),))).__class__ is str


def test_rulesets_in_force() -> None:
    node, reader = new_generations()
    node.request(FILTER)
    finish(node, reader, reading(R("ACCEPT")), lookup(110))
    (found,) = node.rulesets()
    assert (found.backend, found.netns) == ("legacy", NODE)
    assert [r.target for r in found.chain("ip", "filter", "INPUT")] == ["ACCEPT"]
    assert found.policies["ip", "filter", "FORWARD"] == "ACCEPT"
    assert found.chain("ip", "filter", "OUTPUT") == ()


def test_records_beside_the_events() -> None:
    rows = np.zeros(1, table_trace.STEPS)
    rows["kind"], rows["packet"], rows["time"], rows["count"], rows["mark"] = Kind.EVENT_STEPS, 7, 9, 2, 3
    rows["steps_1"][0, :3] = (5 << 2 | 3, 6 << 2 | 1, 99)
    change = np.zeros(2, table_trace.RULESET)
    change["kind"], change["time"], change["object"], change["thread"] = Kind.EVENT_RULESET, (1, 2), NEW, 4
    change["before"], change["pf"], change["table"] = (0, OLD), (10, 0), b"nat"
    dtype = event("HOOK").dtype
    short = np.zeros((2, dtype.itemsize), np.uint8)
    short[:, : table_trace.RULESET.itemsize] = change.view(np.uint8).reshape(2, -1)
    whole = np.concatenate([event("HOOK", hook="INPUT"), rows.view(dtype), short.view(dtype).ravel()])
    events, noted, changes = table_trace.split(whole)
    assert len(events) == 1
    assert table_trace.table_traces(noted) == {9: [TableTrace(3, 2, 0, (0,) * 7, ((40, 3), (48, 1)))]}
    assert list(table_trace.changes(changes)) == [TableLookup(1, 4, 0, "ip6", "nat", NEW), TableReplaced(2, 4, OLD, NEW)]


def test_an_address_that_another_table_has() -> None:
    """A table is freed with its namespace without any event; another table may then get its address."""
    node, reader = new_generations()
    node.request(FILTER)
    finish(node, reader, reading(R("ACCEPT")), lookup(110))
    other = table(900, netns=POD)
    node.request_for(other)
    assert reader.requests[-1] == TableRequest(POD, "ip", "filter")
    assert verdicts(node, other) == "the rules have not been read"
    assert verdicts(node, table(300)) == ["ACCEPT"]
    node.add_changes([TableReplaced(1000, 5, 0x9000, OLD)])
    assert verdicts(node, table(1100)) == "the rules have not been read", "a new blob at the address of an old one"


def test_replaced_rules_are_forgotten_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generation, "REPLACED_KEPT", 3)
    node, reader = new_generations()
    node.request(FILTER)
    finish(node, reader, reading(R("ACCEPT")), lookup(110))
    old = table(300)
    kept = node.reconstruct(old, [])
    assert kept.ruleset and kept.ruleset.chain("ip", "filter", "INPUT")
    addresses = [OLD, *(0x10000 + 0x1000 * n for n in range(5)), OLD]
    for n in range(1, len(addresses)):
        node.add_changes(
            [lookup(1000 * n - 1, addresses[n - 1], thread=5), TableReplaced(1000 * n, 5, addresses[n - 1], addresses[n])]
        )
    assert node.shed["replaced"] == 3
    finish(node, reader, reading(R("DROP"), began=6100, ended=6200), lookup(6110))
    assert verdicts(node, table(6300, verdict="DROP")) == ["DROP"]
    assert verdicts(node, old) == FORGOTTEN, "not by the rules that have its address now"
    assert not kept.ruleset.chain("ip", "filter", "INPUT"), "a kept rule trace does not keep the rules"
    assert verdicts(node, table(4500, addresses[4])) == GONE, "these are still kept"


def test_bytes_of_replaced_rules_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generation, "REPLACED_BYTES_KEPT", 2000)
    node, reader = new_generations()
    node.request(FILTER)
    for n in range(10):
        now, then = 0x1000 * (n + 1), 0x1000 * (n + 2)
        finish(node, reader, reading(R("ACCEPT"), began=1000 * n + 1, ended=1000 * n + 9), lookup(1000 * n + 5, now))
        node.add_changes([lookup(1000 * n + 90, now, thread=5), TableReplaced(1000 * n + 100, 5, now, then)])
    assert 5 < node.shed["replaced"] < 10


def test_nothing_grows_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, names in ((request_queue, ("TABLES_KEPT", "MAX_REQUESTS")), (lookup_history, ("LOOKUPS_KEPT", "THREADS_KEPT"))):
        for name in names:
            monkeypatch.setattr(module, name, 10)
    monkeypatch.setattr(generation, "ADDRESSES_KEPT", 10)
    node, reader = new_generations()
    node.request(TableRequest(NODE, "ip6", "raw"))  # is never answered
    for n in range(100):
        node.request_for(table(300 + n, 0x1000 * n, netns=NODE + n))
        node.add_changes([lookup(1000 + n, thread=n, netns=NODE + n), TableReplaced(1000 + n, n, 0x1000 * n, 0x9000000 + n)])
        reader.ready.append(reading(why="no", request=TableRequest(NODE + n, "ip", "filter")))
    node.add_changes([])
    requests, lookups = node._requests, node._lookups
    evicting = (requests._failures, requests._tables_read, lookups._last_lookup, lookups._lookups)
    assert [len(each) <= 10 for each in (*evicting, requests._pending)] == [True] * 5
    assert len(node._log) <= 20
    for n in range(20):
        node.request(TableRequest(NODE + 1000 + n, "ip", "filter"))
    assert len(requests) == 10
    assert set(node.shed) == {"tables to read", "in force", "replaced"} and all(node.shed.values())
    assert [each.evicted > 0 for each in evicting] == [True] * 4
    for n in range(20):
        node.expect(TableRequest(NODE + 2000 + n, "ip", "filter"))
    assert len(requests) == 10


def test_bytes_of_rules_in_force_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Removed namespaces leave their tables behind. What is given up is read again when a packet meets it."""
    monkeypatch.setattr(generation, "IN_FORCE_BYTES_KEPT", 2000)
    node, reader = new_generations()
    for n in range(20):
        request = TableRequest(NODE + n, "ip", "filter")
        node.request(request)
        now = lookup(1000 * n + 5, 0x1000 * (n + 1), netns=NODE + n)
        finish(node, reader, reading(R("ACCEPT"), began=1000 * n + 1, ended=1000 * n + 9, request=request), now)
        assert sum(g.octets for g in node._log.in_force()) <= 2000
    assert node.shed["rules in force"] >= 15
    first = table(30_000, 0x1000, netns=NODE)
    assert verdicts(node, first) == "the rules have not been read"
    node.request_for(first)
    assert reader.requests[-1] == TableRequest(NODE, "ip", "filter")
    assert verdicts(node, table(30_000, 0x1000 * 20, netns=NODE + 19)) == ["ACCEPT"]


def test_rule_traces_of_table_runs_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(path_cache, "TRACES_KEPT", 3)
    node, reader = new_generations()
    node.request(FILTER)
    finish(node, reader, reading(R("ACCEPT")), lookup(110))
    for mark in (1, 2, 3, 4, 5, 1):
        assert verdicts(node, table(300)._replace(mark=mark)) == ["ACCEPT"]
    assert (len(node._paths._traces), node._paths._traces.evicted) == (3, 3)


def test_a_reading_with_discarded_look_ups_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookup_history, "LOOKUPS_KEPT", 2)
    node, reader = new_generations()
    node.request(FILTER)
    finish(node, reader, reading(R("ACCEPT")), lookup(110), lookup(120, NEW), lookup(130, NEW))
    assert verdicts(node, table(300, NEW)) == "it is not known which generation of the rules was read"
