# SPDX-License-Identifier: Apache-2.0
"""Times between places: of packets on their own and of packets on a shared path, and percentiles."""

from __future__ import annotations

from tests.support import sample_packets as samples
from tracer.analysis.durations import Distribution, PathDurations


def test_legs_of_a_packet() -> None:
    """From the last event of a place to the first one of the next; rewrites and copies are no places."""
    durations = PathDurations()
    assert list(durations.legs(samples.node_port())) == [
        (("node PREROUTING", "node FORWARD"), 7_000),
        (("node FORWARD", "node POSTROUTING"), 9_000),
        (("node POSTROUTING", "pod http-proxy INPUT"), 19_000),
        (("pod http-proxy INPUT", "pod http-proxy socket"), 6_000),
        (("pod http-proxy socket", "pod http-proxy handshake"), 62_000),
    ]
    assert durations.whole(samples.node_port()) == 120_000
    assert list(durations.legs(samples.no_socket())) == [] and durations.whole(samples.no_socket()) is None


def test_merged_distributions_count_as_one() -> None:
    one, other, both = Distribution(), Distribution(), Distribution()
    for ns in range(0, 1000, 7):
        (one if ns % 2 else other).add(ns)
        both.add(ns)
    one.merge(other)
    assert (one.count, one.most, one.at(0.5), one.at(0.99)) == (both.count, both.most, both.at(0.5), both.at(0.99))
    assert Distribution().at(0.5) == 0
