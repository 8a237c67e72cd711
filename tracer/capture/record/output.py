# SPDX-License-Identifier: Apache-2.0
"""The output of a recording without explanation: its beginning, its end, and losses."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from tracer.model.finding import Finding
from tracer.model.packet import Packet
from tracer.model.summary import RunSummary
from tracer.render.base import LostEvents
from tracer.render.text import TextOutput


class RecordOutput(TextOutput):
    """Writes everything to `err`: the only result is the file."""

    def __init__(self, files: Sequence[Path], err: TextIO | None = None) -> None:
        super().__init__(err=err)
        self._files = files

    def packet(self, packet: Packet) -> None: ...

    def finding(self, finding: Finding) -> None: ...

    def lost(self, loss: LostEvents) -> None:
        self.lost_by_probe[loss.probe] += loss.count

    def summary(self, summary: RunSummary) -> None:
        size = sum(path.stat().st_size for path in self._files if path.exists()) / 1e6
        names = ", ".join(map(str, self._files))
        lost = f", {summary.lost} lost" if summary.lost else ""
        self.note(f"{summary.events} events{lost} in {summary.seconds:.1f} s; {size:.1f} MB in {names}.")
