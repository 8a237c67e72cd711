# SPDX-License-Identifier: Apache-2.0
"""The header tracker: short events, and rewrites that are confirmed, not confirmed, or not announced."""

from __future__ import annotations

import numpy as np

from tests.support.builders import SECOND, Ends, Trail, hops, packet, shortened, swapped
from tests.unit.packets.test_assembler import CLIENT, HALF, INSIDE, answer, node_port, rewrites
from tracer.events.record import Flag
from tracer.model.endpoints import Endpoints
from tracer.model.evidence import Evidence
from tracer.model.hop import Nat, NatHop, RewriteHop
from tracer.model.namespace_name import HOST
from tracer.model.netfilter import Hook
from tracer.model.packet import Flow
from tracer.packets.assembler import PacketAssembler


def test_short_events_give_the_same_packets() -> None:
    batch = np.concatenate([node_port().batch, answer().batch])
    fewer = shortened(batch)
    assert np.count_nonzero(fewer["flags"] & Flag.FLAG_SAME) == 9
    emitted = []
    for rows in (batch, fewer):
        assembler = PacketAssembler(hops())
        assembler.feed(rows)
        emitted.append(assembler.flush())
    assert emitted[0] == emitted[1]


def test_a_short_event_has_no_header_when_its_whole_event_was_lost() -> None:
    rows = shortened(node_port().batch)
    short = np.flatnonzero(rows["flags"] & Flag.FLAG_SAME)[0]
    assembler = PacketAssembler(hops())
    assembler.feed(rows[short:])
    (p,) = assembler.flush()
    assert not p.complete
    assert p.endpoints == Endpoints(*HALF), "the header of the next whole event"
    assert [h.nat.kind for h in p.hops if isinstance(h, RewriteHop)] == ["MASQUERADE"], "the result of the DNAT is not known"


def test_a_rewrite_without_confirmation_stays_derived() -> None:
    t = Trail(CLIENT, orig=CLIENT, reply=swapped(HALF)).nat("PREROUTING", 1, HALF)
    assert rewrites(packet(t)) == [("DNAT", Endpoints(*CLIENT), Endpoints(*HALF), Evidence.DERIVED)]


def test_a_rewrite_with_another_result_than_announced() -> None:
    other: Ends = (*HALF[:3], 9090)
    t = Trail(CLIENT, orig=CLIENT, reply=swapped(HALF)).nat("PREROUTING", 1, HALF).now(header=other).hook("PREROUTING")
    assert rewrites(packet(t)) == [
        ("DNAT", Endpoints(*CLIENT), Endpoints(*HALF), Evidence.DERIVED),
        ("rewritten", Endpoints(*HALF), Endpoints(*other), Evidence.DERIVED),
    ]


def test_a_rewrite_to_the_same_address_is_no_rewrite() -> None:
    t = Trail(CLIENT, orig=CLIENT, reply=swapped(CLIENT)).nat("POSTROUTING", 0, CLIENT).hook("POSTROUTING")
    assert [h.kind for h in packet(t).hops] == ["hook"]
    assert packet(t).complete


def test_a_header_that_changes_without_an_announcement() -> None:
    """An ICMP error about a translated connection: conntrack rewrites it outside of nf_nat_manip_pkt."""
    before: Ends = ("10.244.0.11", 0, "10.244.0.1", 0x303)
    after: Ends = ("192.168.56.10", 0, "192.168.56.1", 0x303)
    t = Trail(before, protocol=1, in_name="cni0", orig=CLIENT, reply=swapped(INSIDE), ct_info=4).table("PREROUTING", "raw")
    p = packet(t.now(header=after).hook("PREROUTING"))
    changed = Nat("rewritten", Endpoints(*before[:1], 0, before[2], 0), Endpoints(after[0], 0, after[2], 0))
    assert [h.kind for h in p.hops] == ["table", "nat", "hook"]
    assert p.hops[1] == NatHop(SECOND + 1000, HOST, Hook.PREROUTING, nat=changed, evidence=Evidence.DERIVED)
    assert p.flow == Flow(Endpoints(*CLIENT), Endpoints(*swapped(INSIDE)), "RELATED", True, 0)


def test_fragments_and_copies_do_not_look_rewritten() -> None:
    later_fragment: Ends = ("192.168.56.1", 0, "192.168.56.10", 0)
    t = Trail(CLIENT, protocol=17).hook("PREROUTING").hook("INPUT", header=later_fragment, flags="FRAGMENT")
    assert rewrites(packet(t)) == []
    t = Trail(CLIENT).hook("PREROUTING").hook("PREROUTING", header=HALF, flags="CLONE").hook("INPUT")
    assert rewrites(packet(t)) == []


def test_the_first_event_may_come_after_the_nat_of_its_hook() -> None:
    """A packet matches the filter by its connection only after NAT has set it up; the tables before that are not seen."""
    t = Trail(CLIENT, orig=CLIENT, reply=swapped(HALF)).nat("PREROUTING", 1, HALF).hook("PREROUTING")
    assert packet(t).endpoints == Endpoints(*CLIENT)
