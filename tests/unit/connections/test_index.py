# SPDX-License-Identifier: Apache-2.0
"""Which keys find a timeline, in which order; a removed timeline is not found."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.syns import AFTER_DNAT, INSIDE, MS, REQUESTED, at_listener, packet, syn, synack
from tracer.connections import index as index_module
from tracer.connections.index import BY_ENDS, ConnectionIndex
from tracer.model.connection import ConnectionKey
from tracer.model.endpoints import Endpoints
from tracer.model.hop import HookHop
from tracer.model.namespace_name import HOST, Netns
from tracer.model.packet import Flow, Packet

TRACKED = ConnectionKey("TCP", REQUESTED, 0, HOST)


def indexed() -> ConnectionIndex:
    index = ConnectionIndex()
    index.add(1, syn())
    return index


def test_conntracks_key_is_the_first() -> None:
    index = indexed()
    index.add(2, packet(INSIDE, "ACK", [HookHop(0, Netns("pod-a"))]))
    assert next(index.numbers(synack())) == (1, "")
    assert ConnectionKey.of(syn()) == ConnectionKey.of(synack()) == TRACKED, "in both directions"


def test_endpoints_find_a_timeline_in_both_directions() -> None:
    index = indexed()
    for ends in (REQUESTED, AFTER_DNAT, INSIDE):
        for each in (ends, ends.reversed):
            assert set(index.numbers(packet(each, "ACK", [HookHop(0, HOST)]))) == {(1, BY_ENDS)}, each
    assert not list(index.numbers(packet(replace(REQUESTED, sport=1), "ACK", [HookHop(0, HOST)])))
    assert not list(index.numbers(replace(packet(REQUESTED, "", [HookHop(0, HOST)]), protocol="UDP")))
    assert index.has(1, "TCP", REQUESTED) and not index.has(1, "TCP", REQUESTED.reversed)


def test_endpoints_in_another_namespace_are_not_enough() -> None:
    index = ConnectionIndex()
    index.add(1, syn(*at_listener(True)))
    for ends, netns, found in ((INSIDE, "pod-a", {1}), (REQUESTED, "pod-a", set()), (INSIDE, "pod-b", set())):
        other = packet(ends, "ACK", [HookHop(0, Netns(netns))])
        assert {number for number, _ in index.numbers(other)} == found, (ends, netns)
        assert set(index.elsewhere(other)) == {1}, "it may be a packet of it that was seen again"


def test_loopback_addresses_are_not_searched_elsewhere() -> None:
    index, ends = ConnectionIndex(), Endpoints("127.0.0.1", 40000, "127.0.0.53", 53)
    index.add(1, packet(ends, "", [HookHop(0, Netns("pod-a"))]))
    other = packet(ends, "", [HookHop(0, Netns("pod-b"))])
    assert not list(index.numbers(other)) and not list(index.elsewhere(other))


def test_another_zone_of_a_namespace_is_another_connection() -> None:
    index = indexed()
    flow = Flow(REQUESTED, INSIDE.reversed, "NEW", False, 7, HOST)
    other = packet(REQUESTED, "ACK", [HookHop(0, HOST)], flow=flow)
    assert not list(index.numbers(other)) and not list(index.elsewhere(other))
    assert index.find(ConnectionKey("TCP", REQUESTED, 7, HOST)) is None
    in_pod = packet(INSIDE, "ACK", [HookHop(0, HOST)], flow=replace(flow, netns=Netns("pod-a")))
    assert next(index.numbers(in_pod)) == (1, ""), "of zones in two namespaces it is not known"


def test_an_icmp_error_finds_the_connection_that_it_quotes() -> None:
    flow = Flow(REQUESTED, INSIDE.reversed, "RELATED", True, 0, HOST)
    error = Packet(5, MS, HOST, "eth1", "IPv4", "ICMP", Endpoints("10.9.0.1", 0, "192.168.56.1", 0), flow=flow)
    assert list(indexed().numbers(error)) == [(1, "")]
    assert list(indexed().numbers(replace(error, flow=replace(flow, zone=7)))) == []


def test_entries_of_conntrack() -> None:
    index = indexed()
    assert index.find(TRACKED) == index.find(ConnectionKey("TCP", INSIDE, 0, HOST)) == 1
    assert index.find(ConnectionKey("TCP", INSIDE, 0, Netns("pod-a"))) is None, "it was not seen there"
    assert index.find(ConnectionKey("TCP", INSIDE)) is None, "the namespace is not known"
    assert index.find(ConnectionKey("UDP", REQUESTED, 0, HOST)) is None


def test_a_removed_timeline_is_not_found() -> None:
    index = indexed()
    newer = syn(seq=5)
    index.add(2, newer)
    index.remove(1)
    assert next(index.numbers(newer)) == (2, ""), "keys that a newer timeline took over stay its own"
    index.remove(2)
    assert not list(index.numbers(newer)) and not len(index) and not index._by_alias and not index._by_key


def test_keys_of_one_timeline_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection can have a new pair of endpoints in each packet."""
    monkeypatch.setattr(index_module, "MAX_KEYS", 10)
    index = indexed()
    for n in range(1000):
        index.add(1, packet(replace(REQUESTED, sport=n), "ACK", [HookHop(0, Netns("pod-a"))], flow=syn().flow))
    assert len(index._entries[1].aliases) <= 10 and len(index._by_alias) <= 10 and len(index._by_key) == 1
    index.remove(1)
    assert not index._by_alias and not index._by_key


def test_timelines_that_take_keys_from_each_other_do_not_grow() -> None:
    """The same endpoints in two zones of conntrack: each packet takes the endpoints over."""
    index = ConnectionIndex()
    for _ in range(1000):
        for number, zone in ((1, 0), (2, 7)):
            index.add(number, syn(flow=Flow(REQUESTED, INSIDE.reversed, "NEW", False, zone, HOST)))
    assert all(len(entry.aliases) + len(entry.keys) <= 8 for entry in index._entries.values())
