# SPDX-License-Identifier: Apache-2.0
"""Rows are grouped by packet without a change to any byte."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.shared_paths import delivered, rows_of
from tracer.events.packet_groups import PacketGroups
from tracer.events.record import NOTHING


def test_no_rows() -> None:
    groups = PacketGroups(NOTHING["packet"])
    assert groups.identities == [] and groups.octets(NOTHING) == []


@pytest.mark.parametrize("seed", range(5))
def test_groups_have_the_order_of_first_rows(seed: int) -> None:
    rows = rows_of(*(delivered(n, 40000 + n) for n in range(1, 20)))
    rows = rows[np.random.default_rng(seed).permutation(len(rows))]
    expected: dict[int, list[int]] = {}
    for at, packet in enumerate(rows["packet"].tolist()):
        expected.setdefault(packet, []).append(at)
    groups = PacketGroups(rows["packet"])
    assert groups.identities == list(expected)
    assert groups.octets(rows) == [rows[places].tobytes() for places in expected.values()]


def test_rows_of_another_array_by_the_same_packets() -> None:
    groups, rows = PacketGroups(np.array([8, 7, 8], np.uint64)), np.array([(1,), (2,), (3,)], [("kind", np.uint8)])
    assert groups.identities == [8, 7] and groups.octets(rows) == [b"\1\3", b"\2"]
