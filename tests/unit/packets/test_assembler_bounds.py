# SPDX-License-Identifier: Apache-2.0
"""The bounds of the packet assembler: what is given up is counted, and the output states less, not something wrong."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from tests.support.builders import NODE, POD, SECOND, Ends, Trail, hops, swapped
from tracer.events.record import EventArray, EventRow
from tracer.model.hop import IpvsHop
from tracer.packets import assembler as assembler_module
from tracer.packets import ipvs_connections
from tracer.packets.assembler import CHUNK_PACKETS, EXAMINED_PACKETS, IDLE_NS, PacketAssembler
from tracer.packets.shared_packet import whole
from tracer.rules.rule_resolver import RuleResolver
from tracer.util.evictions import evictions

CLIENT: Ends = ("192.168.56.1", 40812, "192.168.56.10", 30285)
MS = 1_000_000


def trail(number: int, start: int = SECOND, count: int = 3) -> Trail:
    made = Trail(CLIENT, number << 8, start, orig=CLIENT, reply=swapped(CLIENT))
    for _ in range(count):
        made.hook("PREROUTING")
    return made


def test_too_many_open_packets_are_closed_early_and_incomplete(monkeypatch: pytest.MonkeyPatch) -> None:
    """The packet without an event for the longest time is closed first; nothing of it is lost."""
    monkeypatch.setattr(assembler_module, "OPEN_EVENTS", 20)
    evictions.read()
    assembler = PacketAssembler(hops())
    closed = []
    for n in range(1, 11):
        assembler.feed(trail(n, SECOND + n * MS).batch)
        closed += assembler.closed(SECOND + n * MS)
        assert assembler._open_events <= 20
    assert [(p.identity >> 8, len(p.hops), p.complete) for p in closed] == [(n, 3, False) for n in (1, 2, 3, 4)]
    assert evictions.read() == {"open packets": 4}
    rest = assembler.closed(SECOND + 10 * MS + IDLE_NS * 2)
    assert [p.complete for p in rest] == [True] * 6 and assembler._open_events == 0


def test_idle_packets_are_closed_before_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assembler_module, "OPEN_EVENTS", 4)
    assembler = PacketAssembler(hops())
    for n in (1, 2):
        assembler.feed(trail(n, SECOND).batch)
    assembler.feed(trail(3, SECOND + 2 * IDLE_NS).batch)
    assert [p.complete for p in assembler.closed(SECOND + 2 * IDLE_NS)] == [True, True] and assembler.open == 1


def test_one_packet_without_an_end_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """A packet in a routing loop, or an identity in a made-up capture, can have any number of events."""
    monkeypatch.setattr(assembler_module, "OPEN_EVENTS", 100)
    assembler, parts = PacketAssembler(hops()), []
    whole = trail(1, count=1000).batch
    for n, at in enumerate(range(0, 1000, 50)):
        assembler.feed(whole[at : at + 50])
        parts += assembler.closed(SECOND + n)
        assert assembler._open_events <= 100
    parts += assembler.flush()
    assert sum(len(p.hops) for p in parts) == 1000 and not any(p.complete for p in parts)
    assert not parts[0].continues and all(p.continues for p in parts[1:])


def test_a_late_event_of_a_packet_that_is_no_longer_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without what is known of its beginning, the rest is incomplete."""
    monkeypatch.setattr(assembler_module, "CLOSED_KEPT", 3)
    assembler = PacketAssembler(hops(), idle_ns=0)
    firsts, rests = [], []
    for n in range(1, 11):
        both = trail(n).batch
        firsts.append(both[:2])
        rests.append(both[2:])
    assembler.feed(np.concatenate(firsts))
    assert [p.complete for p in assembler.flush()] == [True] * 10
    assert (len(assembler._closed), assembler._closed.evicted) == (3, 7)
    assembler.feed(np.concatenate(rests[::-1]))
    late = assembler.flush()
    assert [(p.identity >> 8, p.complete, bool(p.continues)) for p in late if p.complete] == [
        (n, True, True) for n in (10, 9, 8)
    ]
    assert len(late) == 10


def test_namespaces_that_use_conntrack(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it is no longer known that a namespace uses conntrack, a packet is not called INVALID."""
    monkeypatch.setattr(assembler_module, "NAMESPACES_KEPT", 5)
    assembler = PacketAssembler(hops(), tracking=[NODE])

    def untracked(number: int) -> str:
        assembler.feed(Trail(CLIENT, number << 8, number * SECOND).hook("PREROUTING").hook("FORWARD").batch)
        return assembler.flush()[0].untracked

    assert untracked(1) == "INVALID"
    for n in range(2, 20):
        assembler.feed(Trail(CLIENT, n << 8, n * SECOND, netns=POD + n, orig=CLIENT, reply=swapped(CLIENT)).hook("INPUT").batch)
        assembler.flush()
    assert (len(assembler._tracked), assembler._tracked.evicted) == (5, 14)
    assert untracked(30) == ""


def test_connections_of_ipvs(monkeypatch: pytest.MonkeyPatch) -> None:
    """For an evicted connection the choice is known only from the connection itself."""
    monkeypatch.setattr(ipvs_connections, "CONNECTIONS_KEPT", 3)
    server: Ends = ("192.168.56.1", 40812, "10.244.0.11", 8080)
    builder = hops()

    def evidence(number: int, state: int) -> str:
        made = Trail(CLIENT, number << 8, SECOND)
        made.add("IPVS", hook="INPUT", state=state, manip=1, object=number, orig=CLIENT, reply=swapped(server), table="rr")
        assembler = PacketAssembler(builder)
        assembler.feed(made.batch)
        ((hop,),) = [[h for h in p.hops if isinstance(h, IpvsHop)] for p in assembler.flush()]
        assert isinstance(hop, IpvsHop)
        return f"{hop.decision.chosen} {hop.decision.evidence.value}"

    assert [evidence(n, 1) for n in range(10)] == ["now observed"] * 10
    assert [evidence(n, 2) for n in (6, 7, 8, 9)] == ["earlier derived"] + ["earlier observed"] * 3
    assert (len(builder._ipvs_connections._seen), builder._ipvs_connections._seen.evicted) == (3, 7)


class UnreadRules(RuleResolver):
    """Rules that acted on the packets are still to be read. asked: number of packets that were examined."""

    asked = 0

    def feed(self, batch: EventArray) -> EventArray:
        events = super().feed(batch)
        self.is_settled = False
        return events

    def is_waiting_for(self, records: Sequence[EventRow]) -> bool:
        self.asked += 1
        return False


def test_packets_are_shown_before_all_were_examined() -> None:
    """While rules are being read, a ring full of packets is not examined before the first one is shown."""
    rules = UnreadRules()
    assembler = PacketAssembler(hops(), rules=rules)
    count = EXAMINED_PACKETS + CHUNK_PACKETS
    trails = [Trail(("10.0.0.1", 1000 + n, "10.0.0.2", 80), n << 8, SECOND + n * 1000).hook("PREROUTING") for n in range(count)]
    assembler.feed(np.concatenate([trail.batch for trail in trails]))
    chunks = assembler.chunks(SECOND + 2 * IDLE_NS)
    first = next(chunks)
    assert len(first) == CHUNK_PACKETS and rules.asked == EXAMINED_PACKETS
    sources = [whole(packet).endpoints.sport for chunk in ([first], chunks) for part in chunk for packet in part]
    assert sources == [1000 + n for n in range(count)] and rules.asked == count
