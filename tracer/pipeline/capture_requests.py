# SPDX-License-Identifier: Apache-2.0
"""Asks for a capture around each finding of a run, beside its other outputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TextIO

from tracer.model.check import CheckResult
from tracer.model.finding import Finding
from tracer.model.packet import Packet
from tracer.model.summary import RunSummary
from tracer.packets.shared_packet import SharedPacket
from tracer.render.base import Output


class FindingRecorder(Protocol):
    """Writes captures around findings."""

    def request(self, finding: str) -> None:
        """Asks for a capture around a finding that was just made. finding: its name."""

    def messages(self) -> list[str]:
        """Messages for the user since the previous call."""
        ...


class CaptureRequests(Output):
    """Passes the names of findings to a recorder, and its messages to the user."""

    def __init__(self, recorder: FindingRecorder, err: TextIO | None = None) -> None:
        super().__init__(err=err)
        self._recorder = recorder

    def begin(self, results: Sequence[CheckResult], options_text: str, release: str = "") -> None: ...

    def packet(self, packet: Packet) -> None: ...

    def repeat(self, packet: SharedPacket) -> None: ...

    def finding(self, finding: Finding) -> None:
        self._recorder.request(finding.name)

    def end_batch(self, now: int) -> None:
        self._note_messages()

    def summary(self, summary: RunSummary) -> None:
        self._note_messages()

    def _note_messages(self) -> None:
        for message in self._recorder.messages():
            self.note(message)

    def doctor(self, results: Sequence[CheckResult], status: int) -> None:
        """A run with captures around findings runs no `doctor`."""
