# SPDX-License-Identifier: Apache-2.0
"""The status line of a run: its counts, and that it is never beside other text."""

from __future__ import annotations

import io

import pytest

from tests.support import sample_packets as samples
from tracer.kernel.loss_counters import Loss
from tracer.model.loss import LEFT_OUT
from tracer.model.summary import RunSummary
from tracer.pipeline import status_stage
from tracer.pipeline.status_stage import StatusStage
from tracer.render.base import Output
from tracer.render.text import TextOutput
from tracer.util import status_line
from tracer.util.reading_progress import rules_read
from tracer.util.status_line import ERASE, StatusLine


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(status_stage, "STATUS_SECONDS", 0.0)
    monkeypatch.setattr(status_line, "terminal_columns", lambda stream: 200)
    return Terminal()


def last(terminal: Terminal) -> str:
    return terminal.getvalue().rpartition(ERASE)[2]


def test_the_counts(terminal: Terminal) -> None:
    summary, output = RunSummary(), TextOutput(io.StringIO(), io.StringIO())
    stage = StatusStage(summary, StatusLine(terminal))
    stage.end_batch(0, output)
    assert last(terminal) == "0 events read, 0 packets matched, 0 shown"
    for _ in range(3):
        packet = samples.ping()
        assert stage.feed(packet, output) is packet
    summary.events, summary.packets = 12_345, 2
    output.lost(Loss(LEFT_OUT, -1, 40, "the reader was too slow"))
    output.lost(Loss("hook", 0, 7, "the ring buffer was full"))
    with rules_read.reading(), rules_read.table(80_000) as add:
        add(12_000)
        stage.end_batch(0, output)
    counts = "12,345 events read, 3 packets matched, 2 shown, 40 packets left out, 7 events lost"
    assert last(terminal) == f"{counts}, 12,000 of 80,000 rules read"
    stage.flush(summary, output)
    assert terminal.getvalue().endswith(ERASE)


def test_a_recording_has_no_packets(terminal: Terminal) -> None:
    summary = RunSummary(events=5)
    StatusStage(summary, StatusLine(terminal), explains=False).end_batch(0, TextOutput(io.StringIO(), io.StringIO()))
    assert last(terminal) == "5 events read"


def test_it_is_gone_before_anything_is_printed(terminal: Terminal) -> None:
    line = StatusLine(terminal)
    output: Output = TextOutput(line.guarded(terminal), line.guarded(terminal))
    stage = StatusStage(RunSummary(), line)
    for _ in range(3):
        stage.feed(samples.ping(), output)
        output.packet(samples.ping())
        stage.end_batch(0, output)
        output.note("A note.")
    stage.close()
    lines = terminal.getvalue().split("\n")
    assert sum("packets matched" in each for each in lines) > 3
    for each in lines:
        assert "matched" not in each.rpartition(ERASE)[2], each


def test_once_a_second(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status_stage, "STATUS_SECONDS", 1.0)
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    stage, output = StatusStage(RunSummary(), StatusLine(terminal)), TextOutput(io.StringIO(), io.StringIO())
    for _ in range(100):
        now[0] += 0.05
        stage.end_batch(0, output)
    assert terminal.getvalue().count("events read") in (4, 5)
