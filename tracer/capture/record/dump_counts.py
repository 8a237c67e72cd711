# SPDX-License-Identifier: Apache-2.0
"""Counts the captures around findings. One thread asks for them, another one writes them, a third one serves the counts."""

from __future__ import annotations

from enum import StrEnum

from tracer.util.locked_counts import LockedCounts


class DumpResult(StrEnum):
    """What became of the capture around a finding."""

    WRITTEN = "written"
    JOINED = "joined"
    """In the capture of another finding, which was not written yet."""
    LIMITED = "limited"
    """Not written: this kind of finding had one shortly before."""
    FAILED = "failed"


class DumpCounts(LockedCounts[tuple[str, str]]):
    """The numbers by finding and result. The names of findings come from the code, so their number is small."""
