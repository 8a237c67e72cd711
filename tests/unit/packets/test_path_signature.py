# SPDX-License-Identifier: Apache-2.0
"""Signatures: equal for packets that differ only in what an explanation repeats."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.support.builders import Ends, Trail, swapped
from tests.support.shared_paths import delivered, detail, filtered, forwarded
from tests.unit.packets.test_path_templates import chained
from tracer.events.nft_trace import HIT_DTYPE
from tracer.events.record import Flag, Kind
from tracer.packets import path_signature
from tracer.packets.open_packet import OpenPacket
from tracer.packets.path_signature import PathSignature, digests_of, signatures


def signed(*trails: Trail) -> list[PathSignature | None]:
    return signatures([OpenPacket(trail.batch.tobytes()) for trail in trails])


def keys(*trails: Trail) -> list[bytes]:
    found = [signature.key for signature in signed(*trails) if signature]
    assert len(found) == len(trails)
    return found


def test_no_packets() -> None:
    assert signatures([]) == []


def test_values_are_left_open() -> None:
    same = [delivered(n, 40000 + n, seq=n, ack=n, ident=n, length=60 + n, inode=50 + n) for n in range(1, 5)]
    assert len(set(keys(*same))) == 1
    values = [s for s in signed(*same) if s]
    assert [s.ports for s in values] == [(40000 + n, 0) for n in range(1, 5)]
    assert [s.header for s in values] == [(60 + n, n, n, n) for n in range(1, 5)]
    assert [s.values.object[s.start + 2] for s in values] == [51, 52, 53, 54]


def test_a_signature_does_not_depend_on_other_packets() -> None:
    trails = [delivered(1, 40001), forwarded(2, 40002, 23002), chained(3, 40003, 101, 102, run=9), filtered(4, 40004)]
    together = signed(*trails)
    for trail, signature in zip(trails, together, strict=True):
        (alone,) = signed(trail)
        assert (
            alone and signature and (alone.key, alone.ports, alone.order) == (signature.key, signature.ports, signature.order)
        )


@pytest.mark.parametrize(
    "fields",
    [
        {"ct_info": 0}, {"tcp_flags": 18}, {"mark": 1}, {"zone": 1}, {"netns": 5}, {"in_name": "eth9"}, {"protocol": 17},
        {"pf": 10}, {"verdict": "DROP"}, {"length": 0}, {"orig": ("10.244.0.9", 40001, "10.244.0.12", 8080)},
        {"reply": ("10.244.0.12", 8080, "10.244.0.9", 40001)}, {"state": 3},
        {"header": ("10.244.0.8", 40001, "10.244.0.11", 8080)},
    ],
    ids=str,
)  # fmt: skip
def test_everything_else_is_part_of_it(fields: dict[str, Any]) -> None:
    one, other = delivered(1, 40001), delivered(1, 40001).hook("POSTROUTING", **fields)
    assert len(set(keys(one.hook("POSTROUTING"), other))) == 2


def test_both_chosen_ports() -> None:
    trails = [forwarded(1, 40001, 20001), forwarded(2, 40002, 20002), forwarded(3, 40003), forwarded(4, 40004)]
    first, second, third, fourth = keys(*trails)
    assert first == second != third == fourth
    assert [s.ports for s in signed(*trails) if s] == [(40001, 20001), (40002, 20002), (40003, 0), (40004, 0)]


def test_a_port_that_belongs_to_no_connection_is_part_of_it() -> None:
    untracked = [Trail(("10.0.0.1", port, "10.0.0.2", 80), pf=2).hook("FORWARD") for port in (40001, 40002)]
    assert len(set(keys(*untracked))) == 2
    assert [s.ports for s in signed(*untracked) if s] == [(0, 0)] * 2


@pytest.mark.parametrize(
    ("sport", "dport", "masqueraded"), [(53, 53, 0), (123, 123, 0), (30285, 30285, 0), (40000, 8080, 8080)], ids=str
)
def test_a_chosen_port_that_the_service_has(sport: int, dport: int, masqueraded: int) -> None:
    """Then no port is left open: in which places the service's port stands cannot be told from where the chosen one stands."""
    ends: Ends = ("10.0.0.1", sport, "10.0.0.2", dport)
    answered: Ends = ("10.0.0.3", masqueraded or sport, "10.0.0.2", dport)
    trail = Trail(ends, orig=ends, reply=swapped(answered), ct_info=2, pf=2).hook("FORWARD").hook("POSTROUTING")
    (signature,) = signed(trail)
    assert signature and signature.ports == (0, 0)


def test_rows_of_one_time() -> None:
    one, other = delivered(1), delivered(1)
    other.rows[1]["time"] = other.rows[0]["time"]
    assert len(set(keys(one, other))) == 2


def test_rows_are_taken_in_the_order_of_their_times() -> None:
    rows = delivered(1).batch
    (signature,) = signatures([OpenPacket(rows[[2, 0, 1]].tobytes())])
    (ordered,) = signed(delivered(1))
    assert signature and ordered and signature.key == ordered.key
    assert signature.order == [1, 2, 0] and ordered.order == [0, 1, 2]


def test_runs_of_chains_are_numbered() -> None:
    """The run itself is an address on the kernel's stack."""
    assert len(set(keys(chained(1, 40001, 101, 102, run=7), chained(2, 40002, 101, 102, run=1 << 40)))) == 1
    one, other = chained(1, 40001, 101, 102, run=7), chained(2, 40002, 101, 102, run=7)
    other.rows[-3]["accept_len"] = 8
    assert len(set(keys(one, other))) == 2, "a hit of another run than the one that ended"


def test_no_flag_hides_a_part_of_a_hit() -> None:
    """A capture may have any flags. Only an event can be short."""
    trails = [chained(1, 40001, 101, 102) for _ in range(2)]
    for trail, generation in zip(trails, (7, 8), strict=True):
        trail.rows[1]["flags"] = Flag.FLAG_SAME
        trail.rows[1].view(HIT_DTYPE)["to"] = f"chain {generation}".encode()
    assert len(set(keys(*trails))) == 2


def lost(trail: Trail) -> Trail:
    return trail.lose().hook("POSTROUTING")


def of_kind(kind: Kind) -> Trail:
    trail = delivered(1)
    trail.rows[1]["kind"] = kind
    return trail


@pytest.mark.parametrize(
    "trail",
    [
        lost(delivered(1)), delivered(1).hook("POSTROUTING", flags="CLONE"), delivered(1).hook("POSTROUTING", flags="FRAGMENT"),
        delivered(1).table("INPUT", "filter", flags="REJECT"), of_kind(Kind.EVENT_IPVS), of_kind(Kind.EVENT_STEPS),
        Trail(("10.0.0.1", 0, "10.0.0.2", 0), protocol=1).hook("FORWARD"),
        Trail(("10.0.0.1", 1, "10.0.0.2", 2), protocol=47).hook("FORWARD"),
        Trail(("10.0.0.1", 1, "10.0.0.2", 2)).add("DROP", flags="NO_HEADER"), detail(delivered(1), "TIME_WAIT", (0, 0, 0, 0)),
        detail(delivered(1), "TABLE_FULL", (0, 0, 0, 0)), detail(delivered(1), "RESET", (0, 0, 0, 0)),
    ],
    ids=[
        "lost row", "copy", "fragment", "rejection", "IPVS", "steps", "ICMP", "GRE", "no header", "TIME_WAIT", "full table",
        "reset",
    ],
)  # fmt: skip
def test_packets_without_a_signature(trail: Trail) -> None:
    assert signed(delivered(2), trail, delivered(3))[1] is None
    assert all(signature for signature in signed(delivered(2), trail, delivered(3))[::2])


def test_details_with_a_signature() -> None:
    queue = [detail(delivered(n, 40000 + n), "LISTENER", (n, 128, 0, 128)) for n in (1, 2)]
    assert len(set(keys(*queue))) == 1, "its values are compared when they are decoded"
    assert len(set(keys(queue[0], detail(delivered(3), "NEIGHBOUR", (0, 0, 0, 0))))) == 2


def test_every_signed_kind_has_a_mask() -> None:
    masks = path_signature._MASKS
    assert {kind for kind in Kind if masks[kind].any()} == set(path_signature.SIGNED_KINDS)
    assert np.all((masks == 0) | (masks == 255))


@pytest.mark.parametrize("bit", [0, 24, 31, 32, 48, 56, 63])
def test_rows_that_differ_in_few_bits_have_different_digests(bit: int) -> None:
    """For all multipliers that a process may choose, as far as chance can show it."""
    random = np.random.default_rng(bit)
    rows = np.zeros((64, 40), np.uint64)
    changes = random.integers(0, min(256, 1 << (64 - bit)), rows[:, :3].shape, np.uint64)
    rows[:, [2, 17, 39]] = np.unique(changes, axis=0)[random.integers(0, len(np.unique(changes, axis=0)), 64)] << np.uint64(bit)
    different = len(np.unique(rows, axis=0))
    assert different > 4
    for _ in range(400):
        multipliers = random.integers(0, 1 << 64, 40, np.uint64, endpoint=False) | np.uint64(1)
        assert len(np.unique(digests_of(rows, multipliers))) == different


def test_halves_of_a_word_that_change_alike() -> None:
    """As the numbers of two interfaces in one word: their folded difference is in the upper half alone."""
    random, numbers = np.random.default_rng(1), np.arange(256, dtype=np.uint64)
    rows = np.zeros((256, 40), np.uint64)
    rows[:, 3] = numbers | numbers << np.uint64(32)
    for _ in range(400):
        multipliers = random.integers(0, 1 << 64, 40, np.uint64, endpoint=False) | np.uint64(1)
        assert len(np.unique(digests_of(rows, multipliers))) == len(rows)
