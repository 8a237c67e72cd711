# SPDX-License-Identifier: Apache-2.0
"""What leads to a timeline, in which order, and that nothing leads to one that is gone."""

from __future__ import annotations

from dataclasses import replace

from tests.support.syns import ASKED, HALF, INSIDE, MS, packet, syn, synack
from tracer.connections.index import BY_ENDS, ConnectionIndex, connection_key
from tracer.model.packet import Endpoints, Flow, Hop, Packet
from tracer.model.timeline import ConnectionKey

TRACKED = ConnectionKey("TCP", ASKED, 0, "node")


def learned() -> ConnectionIndex:
    leads = ConnectionIndex()
    leads.add(1, TRACKED, syn())
    return leads


def test_conntrack_leads_first() -> None:
    leads = learned()
    leads.add(2, ConnectionKey("TCP", INSIDE), packet(INSIDE, "ACK", [Hop(0, "socket", "pod-a")]))
    assert next(leads.numbers(synack())) == (1, "")
    assert connection_key(syn()) == TRACKED and connection_key(synack()) == TRACKED, "both ways"


def test_ends_lead_in_both_directions() -> None:
    leads = learned()
    for ends in (ASKED, HALF, INSIDE):
        for each in (ends, ends.reversed):
            assert set(leads.numbers(packet(each, "ACK", [Hop(0, "socket", "pod-a")]))) == {(1, BY_ENDS)}, each
    assert not list(leads.numbers(packet(replace(ASKED, sport=1), "ACK", [Hop(0, "socket", "pod-a")])))
    assert leads.has(1, "TCP", ASKED) and not leads.has(1, "TCP", ASKED.reversed) and not leads.has(1, "UDP", ASKED)


def test_an_icmp_error_is_led_by_what_it_quotes() -> None:
    flow = Flow(ASKED, INSIDE.reversed, "RELATED", True, 0, "node")
    error = Packet(5, MS, "node", "eth1", "IPv4", "ICMP", Endpoints("10.9.0.1", 0, "192.168.56.1", 0), flow=flow)
    assert list(learned().numbers(error)) == [(1, "")]
    assert list(learned().numbers(replace(error, flow=replace(flow, zone=7)))) == []


def test_entries_of_conntrack() -> None:
    leads = learned()
    assert leads.find(TRACKED) == leads.find(ConnectionKey("TCP", INSIDE)) == 1
    assert leads.find(ConnectionKey("UDP", ASKED, 0, "node")) is None


def test_what_is_forgotten_leads_nowhere() -> None:
    leads = learned()
    newer = syn(seq=5)
    leads.add(2, TRACKED, newer)
    leads.remove(1)
    assert next(leads.numbers(newer)) == (2, ""), "what a newer one has taken over stays its own"
    leads.remove(2)
    assert not list(leads.numbers(newer)) and not len(leads) and not leads._by_alias and not leads._by_identity
