# SPDX-License-Identifier: Apache-2.0
"""Two outputs of one run: each gets a finding once, and then each packet that shows it again."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support import captures
from tracer.capture.replay import runner
from tracer.capture.replay.file_series import opened
from tracer.capture.replay.runner import ReplayRequest
from tracer.model.check import CheckResult
from tracer.model.finding import Finding
from tracer.model.packet import Packet
from tracer.model.summary import RunSummary
from tracer.pipeline.joint_output import JointOutput
from tracer.pipeline.shutdown import StopRequest
from tracer.render.base import Output


class Written(Output):
    """What an output was given: (name of a finding, number of packets, whether it was given before)."""

    def __init__(self) -> None:
        super().__init__(err=io.StringIO())
        self.written: list[tuple[str, int, bool]] = []

    def begin(self, results: Sequence[CheckResult], options_text: str, release: str = "") -> None: ...

    def packet(self, packet: Packet) -> None: ...

    def finding(self, finding: Finding) -> None:
        self.written.append((finding.name, finding.packets, False))

    def finding_again(self, finding: Finding) -> None:
        self.written.append((finding.name, finding.packets, True))

    def summary(self, summary: RunSummary) -> None: ...

    def doctor(self, results: Sequence[CheckResult], status: int) -> None: ...


def test_each_output_gets_findings_and_what_shows_them_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tracer.pipeline.live_source.POLL_SECONDS", 0.001)
    path = captures.capture(tmp_path / "a.k8st", captures.some_batches(20)).path
    first, second = Written(), Written()
    with opened([str(path)]) as capture:
        runner.replay(capture, JointOutput((first, second)), ReplayRequest(), StopRequest())
    assert first.written == second.written
    dropped = [(packets, is_again) for name, packets, is_again in first.written if name == "dropped_by_rule"]
    assert dropped == [(count, count > 1) for count in range(1, 10)]
