# SPDX-License-Identifier: Apache-2.0
"""The kept connections and packets: bounds, what is evicted first, and that each packet is kept or counted."""

from __future__ import annotations

import random
from dataclasses import replace

from tests.support import sample_packets as samples
from tests.support.screens import numbered
from tracer.model.handshake import Cause, ConnectionAttempt, HandshakeVerdict
from tracer.model.namespace_name import HOST
from tracer.model.packet import Packet
from tracer.packets.joined_views import first_packet
from tracer.ui.kept_connections import FIRST_PACKETS, MOST_VERDICTS, NEWEST_PACKETS, KeptConnections


def verdict(syn: Packet, name: str = "accepted") -> HandshakeVerdict:
    cause = Cause(name, f"{name}: so", good=name == "accepted")
    return HandshakeVerdict(1, syn.time, syn.endpoints, syn.endpoints, HOST, cause, attempt=ConnectionAttempt(syn, 0))


def test_the_first_and_the_newest_packets_of_a_connection_stay() -> None:
    kept, packets = KeptConnections(), numbered(500)
    for packet in packets:
        kept.add(packet)
    (connection,) = kept.in_order()
    assert list(connection.kept()) == [*packets[:FIRST_PACKETS], *packets[-NEWEST_PACKETS:]]
    assert connection.packets == 500 and kept.packets == FIRST_PACKETS + NEWEST_PACKETS
    assert kept.packets + kept.evicted_packets == 500


def test_the_connection_unused_for_longest_is_evicted() -> None:
    kept = KeptConnections(most=3)
    for packet in numbered(3, 3):
        kept.add(packet)
    kept.add(numbered(1)[0])  # connection 1 again
    kept.add(replace(numbered(1)[0], connection=9))
    assert [first_packet(connection.start).connection for connection in kept.in_order()] == [1, 3, 9]
    assert kept.evicted == kept.evicted_packets == 1 and kept.packets == 4


def test_each_packet_is_kept_or_counted() -> None:
    kept, choice = KeptConnections(most=20, most_packets=100), random.Random(1)
    for number, packet in enumerate(numbered(3_000)):
        kept.add(replace(packet, connection=choice.randint(1, 40)))
        count = sum(len(list(connection.kept())) for connection in kept.in_order())
        assert count == kept.packets <= 100 and len(kept) <= 20
        assert kept.packets + kept.evicted_packets == number + 1


def test_packets_without_a_number_are_joined_by_their_connection() -> None:
    kept = KeptConnections()
    for packet in (samples.node_port(), samples.node_port_reply(), samples.ping(), samples.rejected()):
        kept.add(packet)
    assert [connection.packets for connection in kept.in_order()] == [2, 1, 1]
    assert [connection.bad for connection in kept.in_order()] == [0, 0, 1]


def test_a_verdict_belongs_to_its_syn_and_keeps_no_packets() -> None:
    kept, syn = KeptConnections(), samples.rejected()
    kept.add_verdict(verdict(syn))  # its connection is not kept
    kept.add(syn)
    kept.add_verdict(verdict(syn, "no endpoints"))
    (connection,) = kept.in_order()
    found = connection.verdict_of(syn)
    assert found and found.cause.name == "no endpoints" and found.attempt is None and found is connection.verdict
    assert connection.verdict_of(samples.ping()) is None


def test_verdicts_of_a_connection_are_bounded() -> None:
    kept, syns = KeptConnections(), numbered(MOST_VERDICTS + 5)
    for syn in syns:
        kept.add(syn)
        kept.add_verdict(verdict(syn))
    (connection,) = kept.in_order()
    assert [connection.verdict_of(syn) is not None for syn in syns] == [False] * 5 + [True] * MOST_VERDICTS
