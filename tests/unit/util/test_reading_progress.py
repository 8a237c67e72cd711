# SPDX-License-Identifier: Apache-2.0
"""How many rules have been read: counted while a thread reads, from the beginning each time."""

from __future__ import annotations

from tracer.util.reading_progress import ReadingProgress


def test_tables_of_known_size() -> None:
    progress = ReadingProgress()
    with progress.reading():
        assert progress.phrase() == ""
        with progress.table(64_000) as add:
            add(12_000)
            assert progress.phrase() == "12,000 of 64,000 rules read"
            add(60_000)
            assert progress.phrase() == "64,000 rules read", "never more than there are"
        with progress.reading(), progress.table(16_000):
            assert progress.phrase() == "64,000 of 80,000 rules read"
        assert progress.phrase() == "80,000 rules read"
    assert progress.phrase() == "", "nothing is being read"


def test_it_begins_anew() -> None:
    progress = ReadingProgress()
    with progress.reading():
        progress.add(1000)
        assert progress.phrase() == "1,000 rules read"
    progress.add(500)
    with progress.reading():
        assert progress.phrase() == ""
