# SPDX-License-Identifier: Apache-2.0
"""A made-up capture can name any number of probes and reasons; no total by probe grows with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import captures
from tracer.capture.format.codec import to_json
from tracer.capture.replay import source as source_module
from tracer.capture.replay.capture_reader import CaptureReader
from tracer.capture.replay.source import ReplaySource
from tracer.model.loss import Loss


def test_kinds_of_losses_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_module, "MAX_LOSS_KINDS", 10)
    with CaptureReader(str(captures.capture(tmp_path / "a.k8st", captures.some_batches(2)).path)) as capture:
        source = ReplaySource(capture, lambda events: None)
        source._losses.clear()
        source._loss_kinds.clear()
        for n in range(1000):
            source._loss(to_json(Loss(f"probe {n}", -1, 1, "full")), True)
        assert len({(loss.probe, loss.why) for loss in source._losses}) == 11 and len(source._loss_kinds) == 10
        assert sum(loss.count for loss in source._losses) == 1000 and source._losses[-1].probe == "any"
