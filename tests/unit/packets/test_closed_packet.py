# SPDX-License-Identifier: Apache-2.0
"""What is kept of a closed packet is the same, whether it took a shared path or was explained."""

from __future__ import annotations

import pytest

from tests.support.builders import Trail, shortened
from tests.support.shared_paths import assembled, delivered, forwarded
from tests.unit.packets.test_path_templates import chained
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
