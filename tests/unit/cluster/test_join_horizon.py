# SPDX-License-Identifier: Apache-2.0
"""Packets wait for the slowest node, but not for ever."""

from __future__ import annotations

from tracer.cluster.join_horizon import MOST_BEHIND_NS, OPEN_NS, JoinHorizon

SECOND = 1_000_000_000
NOW = 1_000 * SECOND


def test_the_slowest_node_decides() -> None:
    horizon = JoinHorizon(8 * SECOND)
    horizon.advance("a", NOW)
    horizon.advance("b", NOW - 30 * SECOND)
    assert horizon.read(["a", "b"], NOW) == NOW - 30 * SECOND - OPEN_NS
    assert horizon.read(["a"], NOW) == NOW - OPEN_NS, "a node that has ended delays nothing"


def test_a_node_with_an_unknown_clock_has_a_fixed_time() -> None:
    horizon = JoinHorizon(8 * SECOND)
    horizon.advance("a", NOW)
    assert horizon.read(["a", "b"], NOW) == horizon.read([], NOW) == NOW - 8 * SECOND


def test_a_node_that_hangs_delays_the_others_for_a_limited_time() -> None:
    horizon = JoinHorizon(8 * SECOND)
    horizon.advance("a", NOW - 10 * MOST_BEHIND_NS)
    assert horizon.read(["a"], NOW) == NOW - MOST_BEHIND_NS


def test_packets_of_one_node_wait_for_nothing() -> None:
    horizon = JoinHorizon(0)
    horizon.advance("a", NOW - SECOND)
    assert horizon.read(["a"], NOW) == NOW
