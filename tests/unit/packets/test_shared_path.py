# SPDX-License-Identifier: Apache-2.0
"""The hops of packets on shared paths: made when they are looked at, and equal to hops that are made from events."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from tests.support.blobs import R
from tests.support.builders import OTHER_POD, POD, SECOND, Trail
from tests.support.shared_paths import (
    CountingNames,
    CountingOwners,
    assembled,
    delivered,
    detail,
    filtered,
    forwarded,
    in_both_ways,
    rows_of,
    rules_of,
)  # fmt: skip
from tests.unit.packets import test_assembler_nftables as nft
from tests.unit.packets.test_path_templates import answer, chained, new_connection, ports, with_key
from tests.unit.rules.nftables.test_reconstruct import snapshot
from tracer.events.nft_trace import HIT_DTYPE
from tracer.events.record import Kind
from tracer.model.endpoints import Endpoints
from tracer.model.handshake import last_ends
from tracer.model.hop import DetailHop, DropHop, RewriteHop, RuleHop, SocketHop, alike, alike_of, places_of
from tracer.model.packet import Packet
from tracer.packets.path_memo import PathMemo
from tracer.packets.shared_path import EndpointsPattern, PathHops, SharedPath, shared_hops
from tracer.render.parts.json_template import JsonTemplates, packet_line
from tracer.rules.rule_resolver import RuleResolver
from tracer.util.frozen import evolve


def on_shared_path() -> tuple[list[Packet], list[Packet]]:
    """Packets on shared paths, and the same packets without."""
    rows = rows_of(*(forwarded(n, 40000 + n, 20000 + n) for n in range(1, 5)))
    return assembled([rows], True)[0], assembled([rows], False)[0]


def hops_of(packet: Packet) -> PathHops:
    hops = shared_hops(packet)
    assert hops
    return hops


def test_patterns_of_endpoints() -> None:
    ends = Endpoints("10.0.0.1", 40000, "10.0.0.2", 80)
    assert EndpointsPattern.of(ends, (40000, 0)).fill((50000, 0)) == Endpoints("10.0.0.1", 50000, "10.0.0.2", 80)
    assert EndpointsPattern.of(ends.reversed, (9, 40000)).fill((8, 7)) == Endpoints("10.0.0.2", 80, "10.0.0.1", 7)
    assert EndpointsPattern.of(ends, (0, 0)).fill((50000, 1)) is ends
    none = Endpoints("10.0.0.1", 0, "10.0.0.2", 0)
    assert EndpointsPattern.of(none, (0, 0)).fill((5, 6)) is none, "0 is no port"


def test_hops_are_a_sequence() -> None:
    shared, own = on_shared_path()
    assert shared_hops(shared[0]) is None, "the first one was explained"
    hops, same = hops_of(shared[1]), own[1].hops
    assert isinstance(same, tuple)
    assert len(hops) == len(same) and list(hops) == list(same) and list(reversed(hops)) == list(reversed(same))
    assert (hops[0], hops[-1], hops[1:3]) == (same[0], same[-1], same[1:3])
    assert hops == same and same == hops and hops == hops_of(shared[1]) and hops != hops_of(shared[2])
    assert hash(hops) == hash(same) and repr(hops) == repr(same)
    assert hops[0] is hops[0], "made once"
    assert shared[1] == own[1] and hash(shared[1]) == hash(own[1])


def test_a_path_with_other_statements() -> None:
    """Owners are set once for a path; each packet keeps its own values."""
    shared, own = on_shared_path()
    hops = hops_of(shared[2])
    path = hops.path.with_hops([evolve(h, mark=7) for h in hops])
    for packet, same in zip(shared[1:], own[1:], strict=True):
        assert hops_of(packet).on(path) == tuple(evolve(h, mark=7) for h in same.hops)
    assert path.kept == {} and path.kept is not hops.path.kept


def test_a_memo_computes_once_for_a_path() -> None:
    shared, own = on_shared_path()
    computed: list[int] = []

    def count(packet: Packet) -> int:
        computed.append(packet.identity)
        return len(packet.hops)

    memo, other = PathMemo(count), PathMemo(lambda packet: None)
    assert [memo.of(p) for p in shared] == [len(p.hops) for p in own]
    assert computed == [own[0].identity, own[1].identity]
    assert [other.of(p) for p in shared] == [None] * 4
    assert [memo.of(p) for p in own] == [5] * 4 and len(computed) == 6


def test_what_is_kept_for_a_path_goes_with_it() -> None:
    assert SharedPath((), ()).kept == {}


Make = Callable[[random.Random, int], Trail]
MAKERS: tuple[Make, ...] = (
    lambda r, n: delivered(n, r.choice((40000, 40001, 8080, 53)), inode=r.choice((48213, 48300, 7, 0)), seq=r.randrange(9)),
    lambda r, n: delivered(n, r.randrange(40000, 40004), netns=r.choice((POD, OTHER_POD)), ct_info=r.choice((0, 2, 3))),
    lambda r, n: forwarded(n, r.randrange(40000, 40003), r.choice((0, 20000, 40001, 8080)), mark=r.choice((0, 0x4000))),
    lambda r, n: detail(delivered(n, r.randrange(40000, 40009)), "LISTENER", (r.choice((0, 1)), 128, 0, 128)),
)
MAKERS_BY_TABLE: dict[str, tuple[Make, ...]] = {
    "filter": (lambda r, n: filtered(n, r.choice((22, 1024, 40000, 50000, 80)), r.choice((80, 81)), r.choice((6, 17))),),
    "nat": (
        lambda r, n: new_connection(n, r.randrange(40000, 40006)),
        lambda r, n: answer(n, r.randrange(40000, 40006)),
    ),
}
CHAINS = {
    "FORWARD": [ports("tcp", (1024, 45000)), ports("udp", destinations=(81, 90)), R("ACCEPT")],
    "PREROUTING": [ports("tcp", (40000, 40002)), R("ACCEPT")],
}


def scrambled(r: random.Random, trail: Trail) -> Trail:
    """Makes some packets unusual: rows of one time, a lost row, a row without header, a drop, other flags."""
    change = r.randrange(14)
    if change == 0:
        for row in trail.rows:
            row["time"] = trail.rows[0]["time"]
    elif change == 1:
        trail.rows.pop(r.randrange(len(trail.rows)))
    elif change == 2:
        trail.hook("POSTROUTING", flags="NO_HEADER")
    elif change == 3:
        trail.add("DROP", flags="NO_HEADER", reason=r.choice((2, 6)), object=r.choice((0x10, 0x20)))
    elif change == 4:
        trail.hook("INPUT", verdict=r.choice(("DROP", "STOLEN")))
    elif change == 5:
        trail.add("SOCKET", object=48300, state=r.choice((1, 10)))
    elif change == 6:
        trail.rows[-1]["time"] += SECOND  # a late row
    return trail


@pytest.mark.parametrize("seed", range(40))
def test_random_packets_in_both_ways(seed: int) -> None:
    """Any packets, in batches, some of them in another order: the same packets, rules and requests in both ways."""
    r = random.Random(seed)
    table = r.choice(("filter", "nat"))
    makers = MAKERS + 3 * MAKERS_BY_TABLE[table]
    trails = [scrambled(r, r.choice(makers)(r, n)) for n in range(1, 90)]
    rows = rows_of(*(trail for trail in trails if trail.rows))
    cuts = sorted(r.sample(range(1, len(rows)), 4))
    batches = [rows[a:b].copy() for a, b in zip([0, *cuts], [*cuts, len(rows)], strict=True)]
    if seed % 3 == 0:
        for batch in batches:
            r.shuffle(order := list(range(len(batch))))
            batch[:] = batch[order]
    make = rules_of(CHAINS, table)
    packets, shared = in_both_ways(*batches, rules=make)
    assert len(packets) > 60 and shared > 5
    templates = JsonTemplates()
    for packet in packets:
        hops = shared_hops(packet)
        assert hops is None or templates.line(packet, hops) == packet_line(packet)
    counts = []
    for is_sharing in (False, True):
        names, owners = CountingNames(), CountingOwners()
        assembled(batches, is_sharing, rules=make(), names=names, owners=owners)
        counts.append((names.requests, owners.requests))
    assert counts[0] == counts[1]


@pytest.mark.parametrize("seed", range(20))
def test_random_runs_of_nftables_in_both_ways(seed: int) -> None:
    """Any rules in any order, of any generation, in runs that may have one address or lie within each other."""
    r = random.Random(seed)
    trails = []
    for n in range(1, 250):
        handles = r.choices((101, 102, 103, 999), k=r.choice((1, 1, 2, 2, 2, 3)))
        trail = chained(n, 40000 + n % 7, *handles, run=r.choice((0, 5, 6, 1 << 40)))
        hits = [row for row in trail.rows if row["kind"] == Kind.EVENT_NFT_RULE]
        if r.random() < 0.3:
            r.choice(hits).view(HIT_DTYPE)[r.choice(("run", "generation", "handle", "code", "object"))] = r.choice(
                (0, 5, 7, 101)
            )
        trails.append(scrambled(r, with_key(trail, r.choice((b"aaaa", b"bbbb", b"")))))
    packets, shared = in_both_ways(
        rows_of(*(trail for trail in trails if trail.rows)), rules=lambda: RuleResolver(nft=nft.Rules(snapshot()))
    )
    assert len(packets) > 200 and shared > 10


def test_hops_alike_are_not_made() -> None:
    """What hops of a path have in common is asked of the path; a hop with a value of its own is made alone."""
    shared, own = on_shared_path()
    hops = hops_of(shared[1])
    assert alike(hops) == alike(shared[0].hops) and alike(own[1].hops) is own[1].hops
    for kind in (RewriteHop, RuleHop, SocketHop, DetailHop, DropHop):
        assert list(places_of(hops, kind)) == [at for at, hop in enumerate(own[1].hops) if isinstance(hop, kind)]
        assert list(places_of(own[1].hops, kind)) == list(places_of(hops, kind))
        assert [hop.netns for hop in alike_of(hops, kind)] == [hop.netns for hop in alike_of(own[1].hops, kind)]
    assert last_ends(shared[1]) == last_ends(own[1]) and hops[-1] == own[1].hops[-1] and hops[0] == own[1].hops[0]
    assert hops._hops is None
    assert (shared[1].drop, shared[1].handshake) == (own[1].drop, own[1].handshake)


def test_decision_details_are_those_of_the_packet() -> None:
    rows = rows_of(*(detail(delivered(n), "LISTENER", (1, 2, 3, 4)) for n in range(1, 4)))
    shared, own = assembled([rows], True)[0], assembled([rows], False)[0]
    assert [packet.detail("listener") for packet in shared] == [packet.detail("listener") for packet in own]
    assert shared_hops(shared[2]) and shared[2].detail("listener") and shared[2].detail("route") is None
