# SPDX-License-Identifier: Apache-2.0
"""Counts of captures around findings, from several threads."""

from __future__ import annotations

import threading

from tracer.capture.record.dump_counts import DumpCounts, DumpResult


def test_no_count_is_lost_between_threads() -> None:
    counts = DumpCounts()

    def add() -> None:
        for _ in range(2000):
            counts.add("mtu", DumpResult.JOINED)

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = counts.read()
    assert found == {("mtu", "joined"): 8000}
    found.clear()
    assert counts.read() == {("mtu", "joined"): 8000}, "a copy"
