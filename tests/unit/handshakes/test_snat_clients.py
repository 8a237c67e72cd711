# SPDX-License-Identifier: Apache-2.0
"""How many clients share an address."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.syns import AFTER_DNAT, INSIDE, decision_detail, packet, syn, verdicts, way
from tracer.handshakes import snat_clients
from tracer.handshakes.snat_clients import SnatClients, find_snat
from tracer.model.hop import Drop, DropHop, HookHop, Nat, NatHop
from tracer.model.namespace_name import HOST, Netns
from tracer.model.packet import Packet


def other(src: str, identity: int) -> Packet:
    """The SYN of another client behind the same MASQUERADE."""
    before = replace(AFTER_DNAT, src=src)
    return packet(before, "SYN", [NatHop(0, HOST, nat=Nat("MASQUERADE", before, INSIDE))], identity, seq=identity)


def test_clients_are_counted_once_each() -> None:
    counted = SnatClients()
    for n, src in enumerate(("192.168.56.1", "192.168.56.2", "192.168.56.2")):
        counted.feed(other(src, n))
    assert counted.clients(syn()) == 2
    assert counted.clients(packet(AFTER_DNAT, "SYN", [HookHop(0, HOST)])) == 0


def test_a_new_port_alone_is_no_shared_address() -> None:
    moved = replace(AFTER_DNAT, sport=1)
    assert find_snat(packet(AFTER_DNAT, "SYN", [NatHop(0, HOST, nat=Nat("MASQUERADE", AFTER_DNAT, moved))])) is None
    assert find_snat(packet(AFTER_DNAT, "SYN", way())) == Nat("MASQUERADE", AFTER_DNAT, INSIDE)


def test_the_number_of_clients_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snat_clients, "MAX_CLIENTS", 3)
    counted = SnatClients()
    for n in range(9):
        counted.feed(other(f"10.0.0.{n}", n))
    assert len(counted._clients["10.244.0.1"]) == 3 and counted.clients(syn()) == 0


def test_the_number_of_addresses_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """After an eviction a number may be too small, so none is given."""
    monkeypatch.setattr(snat_clients, "MAX_ADDRESSES", 3)
    counted = SnatClients()
    for n in range(9):
        rewrite = Nat("SNAT", AFTER_DNAT, replace(INSIDE, src=f"9.9.9.{n}"))
        counted.feed(packet(AFTER_DNAT, "SYN", [NatHop(0, HOST, nat=rewrite)]))
    counted.feed(other("192.168.56.1", 1))
    assert len(counted._clients) == 3 and counted._clients.evicted == 7 and counted.clients(syn()) == 0


def test_an_old_timestamp_shows_the_number_of_clients() -> None:
    detail = decision_detail("time-wait", 9, answer="ack", state="TIME_WAIT", ts_recent=5000, tsval=1000, seconds=4)
    late = syn(detail, DropHop(20, Netns("pod-a"), drop=Drop("NOT_SPECIFIED", "tcp_v4_rcv")))
    _, second = sorted(verdicts(other("192.168.56.2", 8), late), key=lambda v: v.cause.name)
    assert "MASQUERADE gives 2 clients the one address 10.244.0.1" in second.cause.text
