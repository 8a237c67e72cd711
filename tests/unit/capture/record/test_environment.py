# SPDX-License-Identifier: Apache-2.0
"""What a recording says about its own losses."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

from tests.support import captures
from tracer.capture.record.capture_files import RotationLimits
from tracer.capture.record.writer import CaptureWriter
from tracer.model.summary import OutputLoss


def test_events_that_are_not_in_the_capture_are_the_loss_of_an_output(tmp_path: Path) -> None:
    """The summary lists them beside what other outputs could not take."""
    machine = captures.Machine(str(tmp_path / "night.k8st"), RotationLimits())
    assert machine.not_written() == [], "nothing was written yet"
    machine.writer = cast(CaptureWriter, SimpleNamespace(lost=0))
    assert machine.not_written() == []
    machine.writer = cast(CaptureWriter, SimpleNamespace(lost=3))
    assert machine.not_written() == [OutputLoss(f"{tmp_path}/night.k8st", 3, "the disk was too slow or full")]
    machine.files.discard()
