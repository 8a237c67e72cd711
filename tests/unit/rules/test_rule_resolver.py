# SPDX-License-Identifier: Apache-2.0
"""A packet gets the rules that acted on it; later packets of a connection get the rule that translated the first one."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.support import hop_fields
from tests.support.blobs import R, build
from tests.support.builders import FIELDS, NODE, POD, SHORT, Ends, Trail, hops, swapped
from tests.support.table_generations import READER_THREAD, FakeTableReader, new_generations
from tracer.events import record
from tracer.events.nft_trace import HIT_DTYPE
from tracer.events.record import DTYPE, Flag, Kind
from tracer.events.table_trace import STEPS, WATCHED, TableLookup
from tracer.model.hop import is_from_conntrack, trace_of
from tracer.model.loss import Loss
from tracer.model.packet import Packet
from tracer.packets.assembler import PacketAssembler
from tracer.rules import rule_resolver as resolver_module
from tracer.rules.iptables.generations import TableGenerations
from tracer.rules.iptables.save_join import SavedRules
from tracer.rules.iptables.table_reader import TableRequest, TableSnapshot
from tracer.rules.rule_resolver import DECIDED_EARLIER, NO_LONGER_KEPT, UNKNOWN_HEADER, UNSEEN, ResolvedRules, RuleResolver

CLIENT: Ends = ("192.168.56.1", 40812, "192.168.56.10", 30285)
AFTER_DNAT: Ends = ("192.168.56.1", 40812, "10.244.0.11", 8080)
AFTER_SNAT: Ends = ("10.244.0.1", 23711, "10.244.0.11", 8080)
NAT = TableRequest(NODE, "ip", "nat")


def assembler_with_rules() -> tuple[PacketAssembler, RuleResolver, TableGenerations, FakeTableReader]:
    node, reader = new_generations()
    rules = RuleResolver(node)
    return PacketAssembler(hops(), idle_ns=0, rules=rules), rules, node, reader


def read_rules(node: TableGenerations, reader: FakeTableReader) -> None:
    # Without events of the kernel side a DNAT rule would be refuted, so plain rules take its place.
    table = build({"PREROUTING": [R("A")], "POSTROUTING": [], "A": [R("ACCEPT")]}, name="nat").table()
    reader.ready.append(TableSnapshot(NAT, READER_THREAD, 100, 200, table, SavedRules(table, None)))
    node.add_changes([])
    node.add_changes([TableLookup(110, READER_THREAD, NODE, "ip", "nat", 0x1000)])


def first_packet(packet: int = 1 << 8) -> Trail:
    trail = Trail(CLIENT, packet, orig=CLIENT, reply=swapped(AFTER_SNAT), ct_info=2, pf=2)
    trail.table("PREROUTING", "nat", object=0x1000, state=WATCHED)
    trail.nat("PREROUTING", 1, AFTER_DNAT)
    return trail.hook("PREROUTING")


def reply(packet: int = 2 << 8) -> Trail:
    trail = Trail(swapped(AFTER_SNAT), packet, start=2_000_000_000, orig=CLIENT, reply=swapped(AFTER_SNAT), ct_info=3, pf=2)
    return trail.nat("POSTROUTING", 2, swapped(AFTER_DNAT)).hook("POSTROUTING")


def other_reply() -> Trail:
    """The answer of a connection to another pod."""
    elsewhere: Ends = ("10.244.0.1", 23711, "10.244.0.12", 8080)
    trail = Trail(swapped(elsewhere), 2 << 8, start=2_000_000_000, orig=CLIENT, reply=swapped(elsewhere), ct_info=3, pf=2)
    return trail.nat("POSTROUTING", 2, swapped(("192.168.56.1", 40812, "10.244.0.12", 8080))).hook("POSTROUTING")


def rule_traces(packet: Packet) -> list[tuple[str, str, bool]]:
    return [
        (
            h.kind,
            hop_fields.undecided(h) or " > ".join(f"{p.chain} {p.number}" for p in hop_fields.hits(h)[-1].path),
            is_from_conntrack(h),
        )
        for h in packet.hops
        if trace_of(h)
    ]


def test_a_drain_without_rows_takes_the_rules_that_were_read() -> None:
    assembler, rules, node, reader = assembler_with_rules()
    assembler.feed(first_packet().batch)
    assert not rules.is_settled and assembler.is_waiting_for_rules
    assert reader.requests == [NAT]
    table = build({"PREROUTING": [R("A")], "POSTROUTING": [], "A": [R("ACCEPT")]}, name="nat").table()
    reader.ready.append(TableSnapshot(NAT, READER_THREAD, 100, 200, table, SavedRules(table, None)))
    assembler.feed(np.zeros(0, DTYPE))
    assert not reader.ready
    node.add_changes([TableLookup(110, READER_THREAD, NODE, "ip", "nat", 0x1000)])
    assert rules.is_settled and not assembler.is_waiting_for_rules
    assert assembler.open == 1 and assembler.events == len(first_packet().batch)
    (packet,) = assembler.flush()
    assert rule_traces(packet)[0] == ("table", "PREROUTING 1 > A 1", False)


def test_a_translation_has_the_rule_that_decided_it() -> None:
    assembler, _, node, reader = assembler_with_rules()
    assembler.feed(first_packet().batch)
    read_rules(node, reader)
    (packet,) = assembler.closed(3_000_000_000)
    path = "PREROUTING 1 > A 1"
    assert rule_traces(packet) == [("table", path, False), ("nat", path, False)]
    assembler.feed(reply().batch)
    (answer,) = assembler.closed(3_000_000_000)
    assert rule_traces(answer) == [("nat", path, True)]


def test_a_connection_from_before_the_run() -> None:
    assembler, *_ = assembler_with_rules()
    assembler.feed(reply().batch)
    (answer,) = assembler.flush()
    assert rule_traces(answer) == [("nat", DECIDED_EARLIER.undecided, True)]


def test_a_connection_that_is_no_longer_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have begun in this run, so it is not said to be older."""
    monkeypatch.setattr(resolver_module, "CONNECTIONS_KEPT", 1)
    assembler, rules, node, reader = assembler_with_rules()
    assembler.feed(first_packet().batch)
    read_rules(node, reader)
    assembler.closed(3_000_000_000)
    other = Trail(
        ("1.1.1.1", 9, "2.2.2.2", 80),
        5 << 8,
        orig=("1.1.1.1", 9, "2.2.2.2", 80),
        reply=("3.3.3.3", 80, "1.1.1.1", 9),
        ct_info=2,
        pf=2,
    )
    rewrite = record.event(other.nat("PREROUTING", 1, ("1.1.1.1", 9, "3.3.3.3", 80)).batch[0])
    rules.begin_packet([rewrite], True)
    assert rules.resolve(rewrite) == ResolvedRules(None)
    assembler.feed(reply().batch)
    (answer,) = assembler.flush()
    assert rule_traces(answer) == [("nat", NO_LONGER_KEPT.undecided, True)]
    # A datagram or a SYN that is sent again passes no nat table: its rule was another packet's.
    trail = Trail(CLIENT, 9 << 8, orig=CLIENT, reply=swapped(AFTER_SNAT), ct_info=2, pf=2)
    again = record.event(trail.nat("PREROUTING", 1, AFTER_DNAT).batch[0])
    rules.begin_packet([again], True)
    assert rules.resolve(again) == ResolvedRules(NO_LONGER_KEPT, from_conntrack=True)


@pytest.mark.parametrize(
    ("probe", "answer", "rule"),
    [("table", reply, "PREROUTING 1 > A 1"), ("drop", reply, "PREROUTING 1 > A 1"), ("table", other_reply, UNSEEN.undecided),
     ("drop", other_reply, "PREROUTING 1 > A 1")],
    ids=["same translation", "same, of no rule", "another translation", "another, of no rule"],
)  # fmt: skip
def test_after_a_loss_a_connection_is_recognised_by_its_translation(probe: str, answer: Callable[[], Trail], rule: str) -> None:
    """Another connection of the same addresses and ports may have begun unseen."""
    assembler, _, node, reader = assembler_with_rules()
    assembler.feed(first_packet().batch)
    read_rules(node, reader)
    assembler.closed(3_000_000_000)
    assembler.add_losses([Loss(probe, -1, 1, "another probe was running", 2_000_000_000, 2_100_000_000)], 2_100_000_000)
    assembler.feed(answer().batch)
    assert rule_traces(assembler.flush()[0]) == [("nat", rule, True)]


def test_after_a_loss_and_a_rule_change_the_rule_is_unknown() -> None:
    assembler, resolver, node, reader = assembler_with_rules()
    assembler.feed(first_packet().batch)
    read_rules(node, reader)
    assembler.closed(3_000_000_000)
    resolver.nft_changed(2_000_000_000)
    assembler.add_losses([Loss("table", -1, 1, "another probe was running")], 2_100_000_000)
    assembler.feed(reply().batch)
    assert rule_traces(assembler.flush()[0]) == [("nat", UNSEEN.undecided, True)]


def test_a_lost_event_does_not_show_another_translator() -> None:
    """The table's event was lost, so it is not known whether a rule was evaluated."""
    assembler, *_ = assembler_with_rules()
    new = (
        Trail(CLIENT, orig=CLIENT, reply=swapped(AFTER_DNAT), ct_info=2, pf=2)
        .lose()
        .nat("PREROUTING", 1, AFTER_DNAT)
        .hook("PREROUTING")
    )
    assembler.feed(new.batch)
    assert rule_traces(assembler.flush()[0]) == [("nat", UNSEEN.undecided, True)]


def test_no_rule_is_computed_from_a_header_that_was_lost() -> None:
    """A table's short event refers to a whole one; without that its addresses are zero."""
    assembler, _, node, reader = assembler_with_rules()
    table = Trail(CLIENT, orig=CLIENT, reply=swapped(AFTER_SNAT), ct_info=2, pf=2)
    table.table("PREROUTING", "nat", object=0x1000, state=WATCHED)
    for name in FIELDS[SHORT:]:
        table.rows[0][name] = np.zeros((), DTYPE[name])
    table.rows[0]["flags"] |= np.uint8(Flag.FLAG_SAME)
    assembler.feed(np.concatenate([table.rows[0], table.now(netns=200, orig=None, reply=None).hook("INPUT").rows[1]]))
    read_rules(node, reader)
    (packet,) = assembler.flush()
    assert rule_traces(packet) == [("table", UNKNOWN_HEADER.undecided, False)]


def test_a_translation_without_a_legacy_table_has_no_rule() -> None:
    """nftables or IPVS may have translated: without an event of a legacy table no table is named."""
    assembler, *_ = assembler_with_rules()
    new = (
        Trail(CLIENT, orig=CLIENT, reply=swapped(AFTER_SNAT), ct_info=2, pf=2)
        .nat("PREROUTING", 1, AFTER_DNAT)
        .hook("PREROUTING")
    )
    assembler.feed(new.batch)
    assembler.feed(reply().batch)
    assert [rule_traces(p) for p in assembler.flush()] == [[], []]


def test_a_packet_waits_for_its_rules() -> None:
    assembler, _, node, reader = assembler_with_rules()
    assembler.feed(first_packet().batch)
    assert assembler.is_waiting_for_rules and assembler.closed(2_000_000_000) == []
    read_rules(node, reader)
    assert not assembler.is_waiting_for_rules and len(assembler.closed(2_000_000_000)) == 1


def test_an_answer_waits_with_the_packet_that_it_answers() -> None:
    """Otherwise the answer comes before its SYN, and counts as missing; its translation seems to be decided by no rule."""
    assembler, _, node, reader = assembler_with_rules()
    earlier = Trail(swapped(CLIENT), 3 << 8, start=500_000_000).hook("OUTPUT")
    elsewhere = Trail(("192.168.56.1", 40813, "192.168.56.10", 22), 4 << 8, start=2_000_000_000).hook("INPUT")
    in_pod = Trail(swapped(AFTER_SNAT), 5 << 8, start=2_500_000_000, netns=POD).hook("OUTPUT")
    detail = Trail(CLIENT, 6 << 8, start=2_000_000_000).hook("INPUT", flags="NO_HEADER").add("CLUE", flags="NO_HEADER")
    for trail in (first_packet(), reply(), earlier, elsewhere, in_pod, detail):
        assembler.feed(trail.batch)
    assert [p.identity >> 8 for p in assembler.closed(3_000_000_000)] == [3, 4]
    assert assembler.horizon(3_000_000_000) == first_packet().rows[0]["time"][0], "nothing later is complete"
    read_rules(node, reader)
    first, second, third = assembler.closed(4_000_000_000)
    assert [p.identity >> 8 for p in (first, second, third)] == [1, 2, 5]
    assert assembler.horizon(4_000_000_000) == 4_000_000_000
    assert rule_traces(first)[0][1] == "PREROUTING 1 > A 1" == rule_traces(second)[0][1]


def test_answers_do_not_wait_for_ever() -> None:
    assembler, *_ = assembler_with_rules()
    assembler.feed(first_packet().batch)
    assembler.feed(reply().batch)
    assert assembler.closed(10_000_000_000) == []
    assert [p.identity >> 8 for p in assembler.closed(12_000_000_000)] == [1, 2]


def test_a_packet_does_not_wait_for_ever() -> None:
    assembler, *_ = assembler_with_rules()
    assembler.feed(first_packet().batch)
    (packet,) = assembler.closed(60_000_000_000)
    assert rule_traces(packet)[0][1] == "the rules have not been read"


def test_without_rules_no_hop_has_a_rule_trace() -> None:
    assembler = PacketAssembler(hops())
    assembler.feed(first_packet().batch)
    assert rule_traces(assembler.flush()[0]) == []


def test_table_traces_of_a_packet_without_events_are_forgotten_with_it() -> None:
    """Only hits of it arrived: it makes no packet."""
    assembler, rules, node, reader = assembler_with_rules()
    read_rules(node, reader)
    rows, hit = np.zeros(1, STEPS), np.zeros(1, HIT_DTYPE)
    rows["kind"], rows["packet"], rows["time"], rows["count"] = Kind.EVENT_STEPS, 7, 300, 1
    hit["kind"], hit["packet"], hit["time"] = Kind.EVENT_NFT_RULE, 7, 300
    assembler.feed(np.concatenate([rows.view(record.DTYPE), hit.view(record.DTYPE)]))
    assert len(rules._table_traces) == 1 and assembler.open == 1
    assert assembler.flush() == [] and not assembler.open and not len(rules._table_traces)


def test_table_traces_of_packets_that_never_end_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolver_module, "PACKETS_KEPT", 10)
    _, rules, node, reader = assembler_with_rules()
    read_rules(node, reader)
    rows = np.zeros(50, STEPS)
    rows["kind"], rows["packet"], rows["time"], rows["count"] = Kind.EVENT_STEPS, np.arange(1, 51), 300, 1
    rules.feed(rows.view(record.DTYPE))
    assert len(rules._table_traces) == 10 and rules._table_traces.evicted == 40
    trail = Trail(CLIENT, 1, start=300, pf=2).table("PREROUTING", "nat", object=0x1000, state=WATCHED + 1)
    trace = rules.resolve(record.event(trail.batch[0])).trace
    assert trace and trace.undecided == "a part of the table's trace was lost"
