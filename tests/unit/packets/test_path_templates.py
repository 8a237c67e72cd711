# SPDX-License-Identifier: Apache-2.0
"""Packets that are filled in from a template are those that would be explained on their own, with the same side effects."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.support.blobs import R
from tests.support.builders import OTHER_POD, POD, SECOND, Trail, swapped
from tests.support.shared_paths import (
    BLOB,
    CountingNames,
    CountingOwners,
    assembled,
    delivered,
    detail,
    filtered,
    forwarded,
    hits_of,
    in_both_ways,
    read,
    rows_of,
    rules_of,
)  # fmt: skip
from tests.support.table_generations import FakeTableReader
from tests.unit.packets import test_assembler_nftables as nft
from tests.unit.rules.nftables.test_reconstruct import snapshot
from tracer.events.nft_trace import HIT_DTYPE
from tracer.events.record import Kind
from tracer.events.table_trace import WATCHED, TableReplaced
from tracer.model.evidence import Evidence
from tracer.model.hop import ChainHop, NatHop, SocketHop, nat_of
from tracer.model.packet import Packet
from tracer.packets import assembler as assembler_module
from tracer.packets import path_signature, path_templates
from tracer.packets.assembler import DIFFERENT, PacketAssembler
from tracer.packets.shared_packet import AnyPacket, SharedPacket
from tracer.rules import rule_resolver
from tracer.rules.iptables.generations import TableGenerations
from tracer.rules.nftables import reconstruct as nft_reconstruct
from tracer.rules.rule_resolver import DECIDED_EARLIER, RuleResolver
from tracer.util.evictions import evictions
from tracer.util.worker import Warnings

SYN_OPTIONS = bytes.fromhex("020405b40402080a0000138800000000")
"""MSS 1460, SACK permitted, timestamp 5000."""
LATER_SYN_OPTIONS = bytes.fromhex("080a0000138900000000020405b40402")
"""The same in another order, timestamp 5001."""
WITHOUT_TIMESTAMP = bytes.fromhex("020405b40402")
QUEUES = (0, 128, 0, 128)
REQUESTS = 4
"""Requests for the name of the namespace by a packet of `delivered`: of three hops, and of its connection."""


def ports(match: str, sources: tuple[int, int] = (0, 65535), destinations: tuple[int, int] = (0, 65535)) -> R:
    """A rule that accepts packets with these ports."""
    data = struct.pack("<HHHHBBBB", *sources, *destinations, 0, 0, 0, 0)
    return R("ACCEPT", ((match, 0, data),), protocol={"tcp": 6, "udp": 17}[match])


def multiport(*numbers: int, which: int = 0) -> R:
    data = struct.pack("<BB15H", which, len(numbers), *numbers, *[0] * (15 - len(numbers))) + bytes(16)
    return R("ACCEPT", (("multiport", 1, data),), protocol=6)


def test_packets_of_other_connections_share_a_path() -> None:
    trails = [delivered(n, 40000 + n, seq=n, length=60 + n, ident=700 + n) for n in range(1, 6)]
    packets, shared = in_both_ways(rows_of(*trails))
    assert shared == 4
    assert [p.endpoints.sport for p in packets] == [40001, 40002, 40003, 40004, 40005]
    assert [(p.seq, p.length, p.ident) for p in packets] == [(n, 60 + n, 700 + n) for n in range(1, 6)]
    assert {p.verdict for p in packets} == {"delivered to pid 4242 nginx in pod-a"}


def test_a_masqueraded_packet_has_its_own_ports() -> None:
    trails = [forwarded(n, 40000 + n, 20000 + n) for n in range(1, 5)]
    packets, shared = in_both_ways(rows_of(*trails))
    assert shared == 3
    nats = [nat for h in packets[-1].hops if (nat := nat_of(h))]
    assert [(n.kind, n.before.sport, n.after.sport) for n in nats] == [("DNAT", 40004, 40004), ("SNAT", 40004, 20004)]
    assert [p.flow.reply.dport for p in packets if p.flow] == [20001, 20002, 20003, 20004]


def test_rows_of_one_time_and_of_two_batches() -> None:
    batches = [rows_of(*(delivered(n, 40000 + n) for n in (1, 2, 3)))]
    late = rows_of(*(delivered(n, 40000 + n, start=10 * SECOND) for n in (4, 5)))
    late["time"] = 10 * SECOND
    packets, shared = in_both_ways(*batches, late)
    assert len(packets) == 5 and shared == 3, "rows of one time are another path than rows of several times"
    own, _ = assembled([], False)
    for is_sharing in (False, True):
        _, assembler = assembled([], is_sharing)
        for part in (rows_of(delivered(1)), rows_of(delivered(2, 40002))[:2], rows_of(delivered(2, 40002))[2:]):
            assembler.feed(part)
        own.append(assembler.flush()[1])
    assert own[0] == own[1] and own[0].complete


def test_late_rows_continue_a_packet_on_a_shared_path() -> None:
    first = rows_of(*(delivered(n, 40000 + n) for n in (1, 2)))
    late = Trail(("10.244.0.9", 40002, "10.244.0.11", 8080), 2 << 8, 3 * SECOND, netns=POD)
    late.hop = 3
    late.add("DROP", flags="NO_HEADER", reason=2, object=0x20, netns=POD)
    short = delivered(2, 40002, start=3 * SECOND)
    short.rows, short.hop, short.time = [], 4, 4 * SECOND
    short.hook("POSTROUTING", out_name="veth", flags="SAME")
    packets, shared = in_both_ways(first, late.batch, short.batch)
    assert shared == 1
    assert packets[2].continues == packets[1].time and packets[2].endpoints.sport == 40002 and packets[2].complete
    assert packets[3].endpoints.sport == 40002


def test_rows_after_a_loss_or_without_a_beginning_are_not_shared() -> None:
    whole = [delivered(n, 40000 + n) for n in (1, 2)]
    cut = delivered(3, 40003).lose().hook("POSTROUTING")
    packets, shared = in_both_ways(rows_of(*whole, cut))
    assert shared == 1 and [p.complete for p in packets] == [True, True, False]


@pytest.mark.parametrize(
    "fields",
    [{"ct_info": 3}, {"tcp_flags": 16}, {"mark": 4}, {"zone": 7}, {"netns": OTHER_POD}, {"in_name": "eth1"}, {"length": 0}],
    ids=str,
)
def test_another_header_is_another_path(fields: dict[str, Any]) -> None:
    packets, shared = in_both_ways(rows_of(delivered(1, 40001), delivered(2, 40002, **fields), delivered(3, 40003)))
    assert len(packets) == 3 and shared == 1


@pytest.mark.parametrize(
    ("rule", "accepted", "others"),
    [
        (ports("tcp", (1024, 40000)), (30000, 1024, 40000), (50000, 1023, 40001)),
        (multiport(4000, 5000), (4000, 5000), (4500, 40000)),
        (multiport(4000, which=2), (4000,), (4001,)),
    ],
    ids=["tcp", "multiport", "multiport of both ends"],
)
def test_rules_on_chosen_ports(rule: R, accepted: tuple[int, ...], others: tuple[int, ...]) -> None:
    """A computed match that compares the source port gives two connections different rules."""
    numbers = dict.fromkeys(accepted, 1) | dict.fromkeys(others, 2)
    for seed in range(4):
        sources = 3 * list(numbers)
        random.Random(seed).shuffle(sources)
        trails = [filtered(n, sport) for n, sport in enumerate(sources, 1)]
        packets, shared = in_both_ways(rows_of(*trails), rules=rules_of({"FORWARD": [rule, R("ACCEPT")]}))
        assert [hits[0] for hits in hits_of(packets)] == [numbers[sport] for sport in sources]
        assert shared >= len(numbers), "packets that the rule treats alike share a path"


def test_a_rule_on_the_destination_port_of_answers() -> None:
    """Answers go to the port that the client chose."""
    chains = {"FORWARD": [ports("udp", destinations=(40000, 40009)), R("ACCEPT")]}
    trails = []
    for n, port in enumerate((40000, 40001, 50000, 50001, 40009, 40010), 1):
        orig = ("10.0.0.2", port, "10.244.0.9", 53)
        trails.append(filtered(n, 53, port, 17, ct_info=3, orig=orig, reply=swapped(orig)))
    packets, shared = in_both_ways(rows_of(*trails), rules=rules_of(chains))
    assert hits_of(packets) == [[1], [1], [2], [2], [1], [2]] and shared == 4


def test_a_rule_on_the_port_of_a_service_leaves_chosen_ports_open() -> None:
    chains = {"FORWARD": [ports("tcp", destinations=(22, 22)), ports("tcp", destinations=(80, 80)), R("DROP")]}
    packets, shared = in_both_ways(rows_of(*(filtered(n, 30000 + n) for n in range(1, 9))), rules=rules_of(chains))
    assert hits_of(packets) == [[2]] * 8 and shared == 7


def test_a_chosen_port_that_equals_the_port_of_the_service() -> None:
    """Servers that use one port for both ends, as NTP: 53 -> 53 and 123 -> 123 are no packets of one path."""
    chains = {"FORWARD": [ports("udp", destinations=(53, 53)), R("ACCEPT")]}
    trails = [filtered(n, port, port, 17) for n, port in enumerate((53, 123, 53, 123), 1)]
    packets, shared = in_both_ways(rows_of(*trails), rules=rules_of(chains))
    assert hits_of(packets) == [[1], [2], [1], [2]] and shared == 2


def test_more_port_ranges_than_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(path_templates, "PORT_RANGES_KEPT", 2)
    few = {"FORWARD": [ports("tcp", (1, 2)), ports("tcp", (3, 4)), R("ACCEPT")]}
    many = {"FORWARD": [ports("tcp", (1, 2)), ports("tcp", (3, 4)), ports("tcp", (5, 6)), R("ACCEPT")]}
    trails = [filtered(n, 30000 + n) for n in (1, 2, 3)]
    assert in_both_ways(rows_of(*trails), rules=rules_of(few))[1] == 2
    assert in_both_ways(rows_of(*trails), rules=rules_of(many))[1] == 0


def test_a_replaced_table() -> None:
    """Rows that met a table before it was replaced are explained by the rules of that time, whatever came in between."""

    def run(is_sharing: bool) -> tuple[list[Packet], int]:
        reader = FakeTableReader()
        node = TableGenerations(reader, lambda extension: False)
        read(node, reader, {"FORWARD": [R("ACCEPT")]})
        _, assembler = assembled([], is_sharing, rules=RuleResolver(node))
        assembler.feed(rows_of(*(filtered(n, 40000 + n) for n in (1, 2))))
        found = assembler.closed(2 * SECOND)
        for before, after in ((BLOB, 0x2000), (0x2000, BLOB)):
            node.add_changes([TableReplaced(2 * SECOND, 5, before, after, "filter")])
        read(node, reader, {"FORWARD": [R(""), R("ACCEPT")]}, time=2 * SECOND + 100)
        for n, time in ((3, 3 * SECOND), (4, 3 * SECOND), (5, SECOND)):
            trail = filtered(n, 40000 + n)
            rows = trail.batch
            rows["time"] = rows["time"] + np.uint64(time - SECOND) if time > SECOND else rows["time"]
            assembler.feed(rows)
            found += assembler.closed(4 * SECOND)
        # Its last row came first: it began before the table was replaced.
        spread = filtered(6, 40006).batch
        spread["time"] = SECOND + 10, 3 * SECOND, 3 * SECOND + 10
        assembler.feed(spread[[1, 2, 0]])
        return found + assembler.flush(), assembler.shared

    (own, none), (shared, count) = run(False), run(True)
    assert (none, count) == (0, 2) and shared == own
    assert hits_of(own) == [[1], [1], [1, 2], [1, 2], [1], [1]]


def test_the_time_of_the_earliest_row_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A packet is compared with the last replacement of a table by its earliest row, in whatever order its rows come."""
    batches = [delivered(n, 40000 + n).batch[::-1].copy() for n in (1, 2, 3)]
    began = [int(rows["time"].min()) for rows in batches]
    for replaced_at, shared in ((min(began) - 1, 2), (max(began), 0)):
        monkeypatch.setattr(RuleResolver, "tables_replaced_at", replaced_at)
        assert assembled(batches, True)[1].shared == shared


def test_equal_digests_of_different_signatures(monkeypatch: pytest.MonkeyPatch) -> None:
    """A digest only finds the path: the signatures are compared, too."""
    monkeypatch.setattr(path_signature, "_MULTIPLIERS", np.zeros_like(path_signature._MULTIPLIERS))
    trails = [delivered(n, 40000 + n, netns=netns) for n, netns in enumerate((7, 7, 8, 8, 7), 1)]
    packets, shared = in_both_ways(rows_of(*trails))
    assert len({packet.netns for packet in packets}) == 2 and shared == 2


def test_facts_of_a_decision_detail() -> None:
    """A SYN without a timestamp, or with its options in another order, has other facts."""
    options = [SYN_OPTIONS, SYN_OPTIONS, LATER_SYN_OPTIONS, WITHOUT_TIMESTAMP, b"", WITHOUT_TIMESTAMP, LATER_SYN_OPTIONS]
    trails = [detail(delivered(n, 40000 + n), "LISTENER", QUEUES, raw) for n, raw in enumerate(options, 1)]
    packets, shared = in_both_ways(rows_of(*trails))
    facts = [list(d.facts.items())[5:] for d in (p.detail("listener") for p in packets) if d]
    assert facts[0] == [("mss", 1460), ("tsval", 5000)] and facts[2] == [("tsval", 5001), ("mss", 1460)]
    assert facts[3] == facts[5] == [("mss", 1460)] and facts[4] == [] and shared == 3
    full = [detail(delivered(n, 40000 + n), "LISTENER", (n, 128, 0, 128)) for n in (1, 2, 1)]
    assert in_both_ways(rows_of(*full[:2]))[1] == 0


def test_a_process_that_is_found_later() -> None:
    """What a packet says is what was found for it, and the next packet has what is found for that one."""
    trails = [delivered(n, 40000 + n) for n in range(1, 6)]
    packets, shared = in_both_ways(rows_of(*trails), owners=lambda: CountingOwners(after=1))
    pids = [h.socket.pid for p in packets for h in p.hops if isinstance(h, SocketHop)]
    assert pids == [0, 4242, 4242, 4242, 4242] and shared == 3
    packets, shared = in_both_ways(rows_of(*trails), owners=lambda: CountingOwners(after=3))
    assert [h.socket.pid for p in packets for h in p.hops if isinstance(h, SocketHop)] == [0, 0, 0, 4242, 4242]


@pytest.mark.parametrize("after", range(12))
def test_a_namespace_that_gets_another_name(after: int) -> None:
    """A name that changes while a packet is explained makes no template with the earlier name."""
    packets, _ = assembled([rows_of(*(delivered(n, 40000 + n) for n in (1, 2, 3)))], True, names=CountingNames(after))
    for n, packet in enumerate(packets):
        names = {h.netns for h in packet.hops} | {packet.flow.netns if packet.flow else ""}
        if after <= REQUESTS * n:
            assert names == {"pod-b"}
        elif after >= REQUESTS * (n + 1):
            assert names == {"pod-a"}


@pytest.mark.parametrize("compared_every", [0, 1])
def test_requests_are_counted_as_without_sharing(compared_every: int) -> None:
    """A recording places answers by the number of requests in a batch, also of packets that met no template."""
    sequence = [(1, 48213), (2, 48213), (3, 48300), (4, 48213), (5, 48300), (6, 7), (7, 8)]
    trails = [delivered(n, 40000 + n, inode=inode) for n, inode in sequence]
    counts = []
    for is_sharing in (False, True):
        names, owners = CountingNames(), CountingOwners()
        _, assembler = assembled([rows_of(*trails)], is_sharing, names=names, owners=owners, compared_every=compared_every)
        counts.append((names.requests, owners.requests))
    assert assembler.shared == 4 and counts[0] == counts[1]


def test_a_listener_owns_a_socket_that_was_not_accepted() -> None:
    listener = [delivered(n, 40000 + n, inode=48300).now(state=10) for n in (1,)]
    listener[0].rows[-1]["state"] = 10
    waiting = [delivered(n, 40000 + n, inode=7) for n in (2, 3, 4)]
    other = delivered(5, 40005, inode=48213)
    other.rows[-1]["state"] = 10
    packets, shared = in_both_ways(rows_of(*listener, *waiting, other, delivered(6, 40006, inode=7)))
    owners = [(h.socket.command, h.evidence) for p in packets for h in p.hops if isinstance(h, SocketHop)]
    assert owners[1:4] == [("dnsmasq", Evidence.DERIVED)] * 3 and owners[5] == ("nginx", Evidence.DERIVED) and shared == 2


def two_sockets(number: int, listening: int) -> Trail:
    """A packet that two sockets of one address receive, the second of which listens."""
    trail = delivered(number, 40000 + number, inode=7)
    return trail.add("SOCKET", object=listening, state=10)


def test_two_sockets_of_one_packet() -> None:
    """A socket is looked up with the listeners before it, not with those of the packet itself."""
    packets, shared = in_both_ways(rows_of(*(two_sockets(n, (48213, 48300)[n % 2]) for n in range(1, 7))))
    assert len(packets) == 6 and shared == 0
    twice = [delivered(n, 40000 + n).add("SOCKET", object=48300, state=1) for n in (1, 2, 3)]
    assert in_both_ways(rows_of(*twice))[1] == 2


def decided_after_use(number: int, sport: int) -> Trail:
    """A packet with a translation from conntrack, of which the nat table runs later."""
    ends = ("192.168.56.1", sport, "192.168.56.10", 30285)
    after = ("192.168.56.1", sport, "10.244.0.11", 8080)
    trail = Trail(ends, number << 8, SECOND + number * 100_000, orig=ends, reply=swapped(after), ct_info=0, pf=2)
    trail.nat("PREROUTING", 1, after, in_name="eth0")
    trail.table("PREROUTING", "nat", object=BLOB, state=WATCHED)
    return trail.hook("PREROUTING").hook("POSTROUTING", out_name="eth1")


def test_a_translation_that_is_used_before_it_is_decided() -> None:
    """The rule that a packet decides is not the one of what it used before."""
    make = rules_of({"PREROUTING": [R("ACCEPT")], "POSTROUTING": []}, "nat")
    packets, shared = in_both_ways(rows_of(*(decided_after_use(n, 40000 + n % 4) for n in range(1, 9))), rules=make)
    traces = [h.rule_trace.undecided for p in packets for h in p.hops if isinstance(h, NatHop) and h.rule_trace]
    assert traces == 4 * [DECIDED_EARLIER.undecided] + 4 * [""] and shared == 0


def new_connection(number: int, sport: int) -> Trail:
    ends = ("192.168.56.1", sport, "192.168.56.10", 30285)
    after = ("192.168.56.1", sport, "10.244.0.11", 8080)
    trail = Trail(ends, number << 8, SECOND + number * 100_000, orig=ends, reply=swapped(after), ct_info=2, pf=2)
    trail.table("PREROUTING", "nat", object=BLOB, state=WATCHED)
    trail.nat("PREROUTING", 1, after, in_name="eth0")
    return trail.hook("PREROUTING").hook("POSTROUTING", out_name="eth1")


def answer(number: int, sport: int) -> Trail:
    ends = ("192.168.56.1", sport, "192.168.56.10", 30285)
    after = ("192.168.56.1", sport, "10.244.0.11", 8080)
    trail = Trail(swapped(after), number << 8, SECOND + number * 100_000, orig=ends, reply=swapped(after), ct_info=3, pf=2)
    return trail.nat("POSTROUTING", 2, swapped(ends), out_name="eth0").hook("POSTROUTING", out_name="eth0")


def test_answers_have_the_rule_of_their_own_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    make = rules_of({"PREROUTING": [ports("tcp", (40000, 40004)), R("ACCEPT")], "POSTROUTING": []}, "nat")
    trails = [new_connection(n, 40000 + n) for n in range(1, 9)] + [answer(n, 39990 + n) for n in range(9, 21)]
    packets, shared = in_both_ways(rows_of(*trails), rules=make)
    assert hits_of(packets)[:8] == [[1, 1]] * 4 + [[2, 2]] * 4
    assert hits_of(packets)[8:] == [[], []] + [[1]] * 4 + [[2]] * 4 + [[], []] and shared == 15
    for kept in (1, 3, 5):
        monkeypatch.setattr(rule_resolver, "CONNECTIONS_KEPT", kept)
        packets, shared = in_both_ways(rows_of(*trails), rules=make)
        assert shared >= 10 and sum(hits == [] for hits in hits_of(packets)[8:]) == 12 - min(kept, 8)


def chained(number: int, sport: int, *handles: int, run: int = 5) -> Trail:
    """A packet that runs a chain of nftables, in which rules with these handles act; the last one accepts it."""
    ends = ("192.168.56.1", sport, "192.168.56.10", 30285)
    trail = Trail(ends, number << 8, SECOND + number * 100_000, orig=ends, reply=swapped(ends), ct_info=2, pf=2)
    trail.hook("INPUT", in_name="eth0")
    for handle in handles:
        nft.hit(trail, handle, 1 if handle == handles[-1] else -1)
        trail.rows[-1].view(HIT_DTYPE)["run"] = run
    trail.add(
        "CHAIN",
        hook="PREROUTING",
        table="nat",
        chain="PREROUTING",
        state=2,
        object=nft.BASE,
        accept_len=run & 0xFFFFFFFF,
        accept_max=run >> 32,
    )
    return trail.hook("PREROUTING", in_name="eth0").hook("POSTROUTING", out_name="eth1")


def test_rules_of_nftables() -> None:
    """Runs have a number of their own in each packet; other rules, or another generation of them, are another path."""
    trails = [chained(n, 40000 + n, 101, 102, run=1000 + 7 * n) for n in (1, 2, 3)]
    trails += [chained(n, 40000 + n, 102, run=n) for n in (4, 5)]
    packets, shared = in_both_ways(rows_of(*trails), rules=lambda: RuleResolver(nft=nft.Rules(snapshot())))
    assert hits_of(packets) == [[1, 2]] * 3 + [[2]] * 2 and shared == 3


def test_rules_of_nftables_that_were_read_later() -> None:
    """Any change of what is known of rules drops the templates."""

    def run(is_sharing: bool) -> tuple[list[Packet], int]:
        rules = nft.Rules()
        _, assembler = assembled([], is_sharing, rules=RuleResolver(nft=rules))
        found = []
        for n in range(1, 5):
            if n == 3:
                rules = nft.Rules(snapshot())
                rules.updates = 1
                assembler._rules._nft = rules
            assembler.feed(rows_of(chained(n, 40000 + n, 101, 102)))
            found += assembler.flush()
        return found, assembler.shared

    (own, none), (shared, count) = run(False), run(True)
    assert shared == own and (none, count) == (0, 1)
    undecided = [bool(h.rule_trace and h.rule_trace.undecided) for p in own for h in p.hops if isinstance(h, ChainHop)]
    assert undecided == [True, True, False, False]


def test_elements_that_time_out_are_looked_up_by_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which element gave a verdict then depends on the time of the packet, so packets are explained on their own."""
    monkeypatch.setattr(nft_reconstruct, "map_keys", lambda hits, snapshots: None)
    trails = [chained(n, 40000 + n, 101, 102) for n in (1, 2, 3)]
    assert in_both_ways(rows_of(*trails), rules=lambda: RuleResolver(nft=nft.Rules(snapshot())))[1] == 0


def with_key(trail: Trail, key: bytes) -> Trail:
    """Sets the registers of its first hit."""
    row = next(row for row in trail.rows if row["kind"] == Kind.EVENT_NFT_RULE)
    row.view(HIT_DTYPE)["registers"] = key
    return trail


def test_keys_of_verdict_maps_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the registers that a rule's map looked up are compared; other registers differ from packet to packet."""
    monkeypatch.setattr(nft_reconstruct, "map_keys", lambda hits, snapshots: [(hits[0], 4, 8)])
    keys = [b"aaaaAAAA", b"bbbbAAAA", b"aaaaBBBB", b"ccccBBBB", b"ddddAAAA"]
    trails = [with_key(chained(n, 40000 + n, 101, 102), key) for n, key in enumerate(keys, 1)]
    assert in_both_ways(rows_of(*trails), rules=lambda: RuleResolver(nft=nft.Rules(snapshot())))[1] == 3


def test_variants_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the bound packets are explained on their own."""
    monkeypatch.setattr(path_templates, "VARIANTS_KEPT", 1)
    trails = [delivered(n, 40000 + n, inode=(48213, 48300)[n % 2]) for n in range(1, 9)]
    assert in_both_ways(rows_of(*trails))[1] == 3
    monkeypatch.setattr(path_templates, "VARIANTS_KEPT", 2)
    assert in_both_ways(rows_of(*trails))[1] == 6


def test_templates_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    evictions.read()
    monkeypatch.setattr(path_templates, "TEMPLATES_KEPT", 2)
    trails = [delivered(n, 40000 + n, mark=n % 4) for n in range(1, 13)]
    packets, shared = in_both_ways(rows_of(*trails))
    assert len(packets) == 12 and shared < 8
    assert evictions.read()["templates of packets"] >= 2


def test_signatures_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(path_templates, "PATHS_KEPT", 2)
    trails = [delivered(n, 40000 + n, mark=n % 3) for n in range(1, 10)]
    assert in_both_ways(rows_of(*trails))[1] == 0
    monkeypatch.setattr(path_templates, "PATHS_KEPT", 3)
    assert in_both_ways(rows_of(*trails))[1] == 6


def wrong(change: Callable[[Packet], Packet]) -> Callable[..., Packet]:
    """Fills in packets wrongly."""
    filled = SharedPacket.packet
    return lambda self, *args: change(filled(self, *args))


@pytest.mark.parametrize(
    "change",
    [
        lambda p: replace(p, length=p.length + 1),
        lambda p: replace(p, flow=replace(p.flow, netns="pod-b")),
        lambda p: replace(p, hops=tuple(replace(h, netns="pod-b") for h in p.hops)),
    ],
    ids=["length", "namespace of the connection", "namespace of hops"],
)
def test_a_wrong_template_is_noticed(monkeypatch: pytest.MonkeyPatch, change: Callable[[Packet], Packet]) -> None:
    """The comparison finds it, the user is warned once, the packet is the one that was explained, and sharing stops."""
    monkeypatch.setattr(SharedPacket, "packet", wrong(change))
    trails = rows_of(*(delivered(n, 40000 + n) for n in range(1, 9)))
    own, _ = assembled([trails], False)
    warnings = Warnings()
    monkeypatch.setattr(assembler_module, "user_warnings", warnings)
    found, assembler = assembled([trails, rows_of(*(delivered(n, 40000 + n) for n in (9, 10)))], True, compared_every=1)
    assert found[:8] == own and assembler.shared == 1 and not assembler.is_sharing
    assert warnings.read() == [DIFFERENT]
    assert [(p.flow.netns if p.flow else "", p.length) for p in found] == [("pod-a", 60)] * 10


def test_each_nth_packet_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[int] = []
    explained = PacketAssembler._compared

    def compare(self: PacketAssembler, identity: int, opened: Any, shared: SharedPacket) -> AnyPacket:
        compared.append(self.shared)
        return explained(self, identity, opened, shared)

    monkeypatch.setattr(PacketAssembler, "_compared", compare)
    assembled([rows_of(*(delivered(n, 40000 + n) for n in range(1, 12)))], True, compared_every=4)
    assert compared == [4, 8]


def test_answers_that_differ_within_a_batch_are_not_shared() -> None:
    """In a replay, questions of such a batch have answers by the number of their requests."""
    _, assembler = assembled([], True)
    assembler.is_uniform = False
    assembler.feed(rows_of(*(delivered(n, 40000 + n) for n in (1, 2, 3))))
    assert len(assembler.flush()) == 3 and assembler.shared == 0
