# SPDX-License-Identifier: Apache-2.0
"""Which keys find a timeline, in which order; a removed timeline is not found."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.syns import AFTER_DNAT, INSIDE, MS, REQUESTED, packet, syn, synack
from tracer.connections import index as index_module
from tracer.connections.index import BY_ENDS, ConnectionIndex, connection_key
from tracer.model.packet import Endpoints, Flow, Hop, HopKind, Packet
from tracer.model.timeline import ConnectionKey

TRACKED = ConnectionKey("TCP", REQUESTED, 0, "node")


def indexed() -> ConnectionIndex:
    index = ConnectionIndex()
    index.add(1, TRACKED, syn())
    return index


def test_conntracks_key_is_the_first() -> None:
    index = indexed()
    index.add(2, ConnectionKey("TCP", INSIDE), packet(INSIDE, "ACK", [Hop(0, HopKind.SOCKET, "pod-a")]))
    assert next(index.numbers(synack())) == (1, "")
    assert connection_key(syn()) == TRACKED and connection_key(synack()) == TRACKED, "in both directions"


def test_endpoints_find_a_timeline_in_both_directions() -> None:
    index = indexed()
    for ends in (REQUESTED, AFTER_DNAT, INSIDE):
        for each in (ends, ends.reversed):
            assert set(index.numbers(packet(each, "ACK", [Hop(0, HopKind.SOCKET, "pod-a")]))) == {(1, BY_ENDS)}, each
    assert not list(index.numbers(packet(replace(REQUESTED, sport=1), "ACK", [Hop(0, HopKind.SOCKET, "pod-a")])))
    assert index.has(1, "TCP", REQUESTED) and not index.has(1, "TCP", REQUESTED.reversed) and not index.has(1, "UDP", REQUESTED)


def test_an_icmp_error_finds_the_connection_that_it_quotes() -> None:
    flow = Flow(REQUESTED, INSIDE.reversed, "RELATED", True, 0, "node")
    error = Packet(5, MS, "node", "eth1", "IPv4", "ICMP", Endpoints("10.9.0.1", 0, "192.168.56.1", 0), flow=flow)
    assert list(indexed().numbers(error)) == [(1, "")]
    assert list(indexed().numbers(replace(error, flow=replace(flow, zone=7)))) == []


def test_entries_of_conntrack() -> None:
    index = indexed()
    assert index.find(TRACKED) == index.find(ConnectionKey("TCP", INSIDE)) == 1
    assert index.find(ConnectionKey("UDP", REQUESTED, 0, "node")) is None


def test_a_removed_timeline_is_not_found() -> None:
    index = indexed()
    newer = syn(seq=5)
    index.add(2, TRACKED, newer)
    index.remove(1)
    assert next(index.numbers(newer)) == (2, ""), "keys that a newer timeline took over stay its own"
    index.remove(2)
    assert not list(index.numbers(newer)) and not len(index) and not index._by_alias and not index._by_identity


def test_keys_of_one_timeline_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection can have a new pair of endpoints in each packet."""
    monkeypatch.setattr(index_module, "MAX_KEYS", 10)
    index = indexed()
    for n in range(1000):
        index.add(1, TRACKED, packet(replace(REQUESTED, sport=n), "ACK", [Hop(0, HopKind.SOCKET, "pod-a")], flow=syn().flow))
    assert len(index._keys[1]) <= 10 and len(index._by_alias) + len(index._by_identity) <= 10
    index.remove(1)
    assert not index._by_alias and not index._by_identity


def test_timelines_that_take_keys_from_each_other_do_not_grow() -> None:
    """The same endpoints in two zones of conntrack: each packet takes the endpoints over."""
    index = ConnectionIndex()
    for _ in range(1000):
        for number, zone in ((1, 0), (2, 7)):
            one = syn()
            index.add(number, ConnectionKey("TCP", REQUESTED, zone, "node"), one)
    assert all(len(keys) <= 8 for keys in index._keys.values())
