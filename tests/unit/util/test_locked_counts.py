# SPDX-License-Identifier: Apache-2.0
"""Numbers that several threads count."""

from __future__ import annotations

import threading

from tracer.util.locked_counts import LockedCounts


def test_no_count_is_lost_between_threads() -> None:
    counts = LockedCounts(("written", "failed"))

    def add() -> None:
        for _ in range(2000):
            counts.add("written")
        counts.add("joined", 3)

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = counts.read()
    assert found == {"written": 8000, "failed": 0, "joined": 12}
    found.clear()
    assert counts.read()["written"] == 8000, "a copy"
