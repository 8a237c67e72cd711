# SPDX-License-Identifier: Apache-2.0
"""Rule hits among the events: the hop of each chain gets its rule trace; hits count in event numbers and in waiting."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.support import hop_fields
from tests.support.builders import NODE, SECOND, Ends, Trail, hops
from tests.unit.rules.nftables.test_reconstruct import TABLE, Held, snapshot
from tracer.events.nft_trace import HIT_DTYPE, Trace
from tracer.events.record import DTYPE, EventArray, Kind
from tracer.model.hop import decision_of, trace_of
from tracer.model.packet import Packet
from tracer.packets.assembler import IDLE_NS, RULES_WAIT_NS, PacketAssembler
from tracer.rules.nftables.snapshot import Snapshot
from tracer.rules.rule_resolver import RuleResolver

CLIENT: Ends = ("192.168.56.1", 40812, "192.168.56.10", 30285)
BASE = 0xFFFF0000


class Rules(Held):
    """Snapshots that have been read; `reading`: another one is being read."""

    updates = 0

    def __init__(self, *snapshots: Snapshot, reading: bool = False) -> None:
        super().__init__(*snapshots)
        self.reading = reading

    def refresh(self) -> None: ...

    def is_coming(self, inode: int, generation: int) -> bool:
        return self.reading and self.find(inode, generation) is None


def hit(trail: Trail, handle: int, code: int, trace: str = "RULE") -> None:
    """Adds a hit record between the events of the trail."""
    row = np.zeros(1, HIT_DTYPE)
    fields: dict[str, Any] = {
        "time": trail.time, "packet": trail.packet, "hop": trail.hop, "object": BASE, "netns": NODE, "generation": 7,
        "kind": Kind.EVENT_NFT_RULE, "handle": handle, "code": code & 0xFFFFFFFF, "trace": Trace["TRACE_" + trace],
        "table_handle": TABLE, "policy": 1,
    }  # fmt: skip
    for name, value in fields.items():
        row[0][name] = value
    trail.rows.append(row.view(DTYPE))
    trail.hop += 1
    trail.time += 1000


def trail() -> Trail:
    """One run of the nat chain, in which two rules act, and one run of another chain, without hit records."""
    t = Trail(CLIENT)
    hit(t, 101, -1)
    hit(t, 102, 1)
    t.add("CHAIN", hook="PREROUTING", table="nat", chain="PREROUTING", state=2, object=BASE)
    t.add("CHAIN", hook="PREROUTING", table="raw", chain="PREROUTING", state=2, object=BASE + 8)
    return t.hook("PREROUTING")


def packets(batch: EventArray, rules: Rules | None) -> list[Packet]:
    assembler = PacketAssembler(hops(), rules=RuleResolver(nft=rules))
    assembler.feed(batch)
    return assembler.flush()


def test_the_hop_of_a_chain_has_its_rule_trace() -> None:
    (packet,) = packets(trail().batch, Rules(snapshot()))
    assert [(h.kind, hop_fields.table(h)) for h in packet.hops] == [("chain", "ip nat"), ("chain", "ip raw"), ("hook", "")]
    trace = trace_of(packet.hops[0])
    assert trace and [v.location.number for v in trace.hits] == [1, 2] and trace.undecided == ""
    assert [trace_of(h) for h in packet.hops[1:]] == [None, None]
    assert packet.complete, "hits are numbered with the events"


def test_a_lost_hit_leaves_a_gap() -> None:
    t = Trail(CLIENT)
    hit(t, 101, -1)
    t.lose().add("CHAIN", hook="PREROUTING", table="nat", chain="PREROUTING", state=2, object=BASE)
    (packet,) = packets(t.batch, Rules(snapshot()))
    assert not packet.complete
    assert trace_of(packet.hops[0]) and hop_fields.undecided(packet.hops[0]) == "a part of the rule trace was lost"


def test_without_rules_hits_are_no_hops() -> None:
    (packet,) = packets(trail().batch, None)
    assert len(packet.hops) == 3 and not any(trace_of(h) for h in packet.hops)


def test_hits_alone_are_no_packet() -> None:
    t = Trail(CLIENT)
    hit(t, 101, 1)
    assert packets(t.batch, Rules(snapshot())) == []


def test_a_packet_waits_for_its_rules() -> None:
    rules = Rules(reading=True)
    assembler = PacketAssembler(hops(), rules=RuleResolver(nft=rules))
    t = trail()
    assembler.feed(t.batch)
    idle = t.time + IDLE_NS
    assert assembler.closed(idle) == []
    rules._snapshots = (snapshot(),)
    (packet,) = assembler.closed(idle)
    assert trace_of(packet.hops[0]) and decision_of(packet.hops[0])


def test_a_packet_does_not_wait_for_its_rules_for_ever() -> None:
    assembler = PacketAssembler(hops(), rules=RuleResolver(nft=Rules(reading=True)))
    t = trail()
    assembler.feed(t.batch)
    assert assembler.closed(t.time + RULES_WAIT_NS - SECOND) == []
    (packet,) = assembler.closed(t.time + RULES_WAIT_NS)
    assert trace_of(packet.hops[0]) and hop_fields.undecided(packet.hops[0]).endswith("could not be read in time")
