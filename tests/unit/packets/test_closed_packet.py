# SPDX-License-Identifier: Apache-2.0
"""What is kept of a closed packet is the same, whether it took a shared path or was explained."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.builders import Trail, shortened
from tests.support.shared_paths import assembled, delivered, forwarded
from tests.unit.packets.test_path_templates import chained
from tracer.events.record import DTYPE
from tracer.packets.closed_packet import ClosedPacket, ClosedSharedPacket


def short(trail: Trail) -> Trail:
    """The same packet with short rows, as the kernel writes them."""
    trail.rows = [shortened(trail.batch)]
    return trail


@pytest.mark.parametrize(
    "trails",
    [
        [delivered(n, 40000 + n, seq=n, length=60 + n, ident=n) for n in (1, 2)],
        [forwarded(n, 40000 + n, 20000 + n, seq=n) for n in (1, 2)],
        [short(forwarded(n, 40000 + n, 20000 + n, seq=n)) for n in (1, 2)],
        [short(delivered(n, 40000 + n, seq=n)) for n in (1, 2)],
        [chained(n, 40000 + n, 101, 102) for n in (1, 2)],
    ],
    ids=["delivered", "forwarded", "forwarded, short rows", "delivered, short rows", "hits of nftables"],
)
def test_the_same_is_kept(trails: list[Trail]) -> None:
    kept = []
    for is_sharing in (False, True):
        _, assembler = assembled([], is_sharing)
        for trail in trails:
            assembler.feed(trail.batch)
            assembler.flush()
        assert assembler.shared == is_sharing
        kept.append(assembler._closed[2 << 8])
    own, shared = kept
    assert isinstance(own, ClosedPacket) and isinstance(shared, ClosedSharedPacket)
    assert shared.headers() == own == own.headers() and shared.last == own.last


@pytest.mark.parametrize(
    ("make", "rows"),
    [
        (lambda n: short(delivered(n, 40000 + n)), 1),
        (lambda n: delivered(n, 40000 + n), 2),
        (lambda n: short(forwarded(n, 40000 + n, 20000 + n)), 3),
    ],
    ids=["one whole row", "all rows are whole", "two rewrites after a whole row"],
)
def test_only_rows_with_a_header_or_a_rewrite_are_kept(make: Callable[[int], Trail], rows: int) -> None:
    _, assembler = assembled([make(n).batch for n in (1, 2)], True)
    kept = assembler._closed[2 << 8]
    assert isinstance(kept, ClosedSharedPacket)
    assert len(kept.rows) == rows * DTYPE.itemsize
