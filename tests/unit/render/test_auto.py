# SPDX-License-Identifier: Apache-2.0
"""Blocks become lines when packets are too many: at the same packet in each run, once, and never by default in a file."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support import captures
from tests.support import sample_packets as samples
from tests.support.terminal import Terminal
from tracer.model.packet import Packet
from tracer.model.summary import RunSummary
from tracer.pipeline.sinks import OutputSpec
from tracer.render import auto
from tracer.render.auto import CHANGE, WINDOW_PACKETS, WINDOW_SECONDS, AutoOutput
from tracer.render.text import TextOutput

SECOND = 1_000_000_000


def packets(count: int, seconds: float, after: float = 0) -> list[Packet]:
    """That many packets in that time, evenly."""
    step = int(seconds * SECOND / count)
    return [replace(samples.ping(), time=samples.EPOCH + int(after * SECOND) + n * step, number=n) for n in range(count)]


def written(some: list[Packet]) -> tuple[str, str]:
    """What is written on both streams."""
    out, err = io.StringIO(), io.StringIO()
    output = AutoOutput(out, err)
    for packet in some:
        output.packet(packet)
    return out.getvalue(), err.getvalue()


def blocks(some: list[Packet]) -> str:
    out = io.StringIO()
    for packet in some:
        TextOutput(out, io.StringIO()).packet(packet)
    return out.getvalue()


def test_few_packets_are_blocks() -> None:
    few = packets(WINDOW_PACKETS * 3, WINDOW_SECONDS * 3.1)
    assert written(few) == (blocks(few), "")


def test_a_burst_of_one_request_changes_nothing() -> None:
    burst = packets(WINDOW_PACKETS, 0.1)
    assert written(burst) == (blocks(burst), "")


def test_many_packets_become_lines_once_and_for_good() -> None:
    many = packets(WINDOW_PACKETS * 2, WINDOW_SECONDS)
    out, err = written([*many, *packets(3, 60, after=100)])
    shown, lines = blocks(many[:WINDOW_PACKETS]), out.splitlines()[-(WINDOW_PACKETS + 3) :]
    assert out.startswith(shown) and out[len(shown) :].splitlines() == lines
    assert all(len(line.split("  ")) == 8 for line in lines), "one line for each later packet"
    assert err == CHANGE + "\n", "one sentence, once"
    assert "-o text keeps blocks" in CHANGE


def test_the_change_does_not_depend_on_the_speed_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    many = packets(WINDOW_PACKETS * 2, WINDOW_SECONDS)
    first = written(many)
    monkeypatch.setattr("time.monotonic_ns", lambda: 0)
    monkeypatch.setattr("time.time_ns", lambda: 0)
    assert written(many) == first


def test_the_summary_is_that_of_text() -> None:
    out, text = io.StringIO(), io.StringIO()
    AutoOutput(out, io.StringIO()).summary(RunSummary(3, 1, 42))
    TextOutput(text, io.StringIO()).summary(RunSummary(3, 1, 42))
    assert out.getvalue() == text.getvalue()


@pytest.mark.parametrize(
    ("words", "terminal", "form"),
    [
        ([], True, "auto"),
        ([], False, "text"),
        (["-o", "text"], True, "text"),
        (["-v"], True, "text"),
        (["--follow"], True, "text"),
        (["-o", "auto"], False, "auto"),
        (["--oneline"], True, "oneline"),
    ],
)
def test_it_is_chosen_on_a_terminal_only(
    run: Any, words: list[str], terminal: bool, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Any] = []
    monkeypatch.setattr("tracer.commands.trace.trace", lambda cmd, **options: given.append(options["outputs"]))
    monkeypatch.setattr("sys.stdout", Terminal() if terminal else io.StringIO())
    run(*words)
    assert given == [(OutputSpec(form),)]


def test_a_replay_never_changes_by_itself(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tracer.pipeline.live_source.POLL_SECONDS", 0.001)
    monkeypatch.setattr(auto, "WINDOW_PACKETS", 1)
    path = captures.capture(tmp_path / "a.k8st").path
    chosen: list[Any] = []
    monkeypatch.setattr("tracer.commands.read.read", lambda paths, options: chosen.append(options["outputs"]))
    monkeypatch.setattr("sys.stdout", Terminal())
    run("-r", path)
    assert chosen == [(OutputSpec("text"),)]
