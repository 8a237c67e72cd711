# SPDX-License-Identifier: Apache-2.0
"""The totals of connections, and which endpoint was chosen for them."""

from __future__ import annotations

from dataclasses import replace

from tests.support import sample_packets
from tracer.analysis.connection_totals import ConnectionTotals, OpenConnections
from tracer.model.connection import ConnectionKey
from tracer.model.packet import Outcome, Packet
from tracer.model.timeline import Timeline


def totals(*packets: Packet) -> ConnectionTotals:
    found = ConnectionTotals()
    for packet in packets:
        found.add(packet)
    return found


def test_both_directions_are_summed() -> None:
    request, reply = sample_packets.node_port(), sample_packets.node_port_reply()
    found = totals(request, reply)
    assert (found.packets, found.reply_packets, found.length, found.dropped) == (2, 1, 120, 0)
    assert found.first == request.time and found.last == reply.time + 64_000
    assert found.endpoint == ("10.244.0.11", 8080)


def test_a_reply_alone_shows_the_endpoint() -> None:
    assert totals(replace(sample_packets.node_port_reply(), flow=None)).endpoint == ("10.244.0.11", 8080)


def test_no_endpoint_was_chosen_for_a_packet_that_was_dropped_at_once() -> None:
    """The address of a Service without endpoints is no endpoint."""
    found = totals(sample_packets.rejected())
    assert (found.endpoint, found.dropped) == (None, 1)


def test_without_translation_the_destination_serves_if_the_packet_got_there() -> None:
    packet = replace(sample_packets.node_port(), flow=None, hops=sample_packets.node_port().hops[-2:])
    assert totals(packet).endpoint == ("192.168.56.10", 30285)
    assert totals(replace(packet, outcome=Outcome.UNKNOWN)).endpoint is None


def test_an_icmp_error_counts_but_its_router_does_not_serve() -> None:
    error = replace(sample_packets.ping(), icmp=(3, 1), outcome=Outcome.DELIVERED)
    dropped = replace(sample_packets.rejected(), flow=None)
    found = totals(dropped, error)
    assert (found.packets, found.endpoint) == (2, None)


def test_a_connection_is_kept_until_it_is_over() -> None:
    held = OpenConnections()
    packet = replace(sample_packets.node_port(), connection=7)
    timeline = Timeline(ConnectionKey.of(packet), 1, 1, packet.endpoints, number=7)
    held.feed(packet)
    held.feed(sample_packets.ping())
    assert len(held) == 1, "a packet without a number belongs to no connection"
    found = held.close(timeline)
    assert found and found.timeline is timeline and found.packets == 1 and len(held) == 0
    assert held.close(timeline) is None
