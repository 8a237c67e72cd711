# SPDX-License-Identifier: Apache-2.0
"""Captures around findings, as the flight recorder has counted them."""

from __future__ import annotations

from tests.support.metric_books import book, values
from tracer.capture.record.dump_counts import DumpCounts, DumpResult


def test_they_are_counted_by_finding_and_result() -> None:
    counts = DumpCounts()
    metrics = book(captures=counts.read)
    assert values(metrics, "finding_captures") == {}
    for finding, result in (("mtu", DumpResult.WRITTEN), ("mtu", DumpResult.LIMITED), ("mtu", DumpResult.LIMITED)):
        counts.add((finding, result))
    counts.add(("conntrack_full", DumpResult.FAILED))
    assert values(metrics, "finding_captures") == {
        ("conntrack_full", "failed"): 1, ("mtu", "limited"): 2, ("mtu", "written"): 1,
    }  # fmt: skip
    assert values(book(), "finding_captures") == {}, "without --dump"
