# SPDX-License-Identifier: Apache-2.0
"""Rows are grouped by packet, and joined, without a change to any byte."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.shared_paths import delivered, rows_of
from tracer.events.packet_groups import by_packet, joined_rows
from tracer.events.record import DTYPE, NOTHING


def test_no_rows() -> None:
    assert list(by_packet(NOTHING["packet"], NOTHING)) == []


@pytest.mark.parametrize("seed", range(5))
def test_groups_have_the_order_of_first_rows(seed: int) -> None:
    rows = rows_of(*(delivered(n, 40000 + n) for n in range(1, 20)))
    rows = rows[np.random.default_rng(seed).permutation(len(rows))]
    expected: dict[int, list[int]] = {}
    for at, packet in enumerate(rows["packet"].tolist()):
        expected.setdefault(packet, []).append(at)
    found = list(by_packet(rows["packet"], rows))
    assert [packet for packet, _ in found] == list(expected)
    for packet, own in found:
        assert own.tobytes() == rows[expected[packet]].tobytes()


def test_groups_are_copies() -> None:
    rows = delivered(1).batch
    ((_, own),) = by_packet(rows["packet"], rows)
    before = own.tobytes()
    rows["time"] = 0
    assert own.tobytes() == before


def test_rows_of_another_array_by_the_same_packets() -> None:
    packets = np.array([7, 8, 7], np.uint64)
    assert [(n, own.tolist()) for n, own in by_packet(packets, np.array([1, 2, 3]))] == [(7, [1, 3]), (8, [2])]


def test_joined_rows() -> None:
    rows = rows_of(*(delivered(n) for n in (1, 2)))
    joined = joined_rows([rows[:1], rows[1:4], rows[4:]])
    assert joined.dtype == DTYPE and joined.tobytes() == rows.tobytes()
