# SPDX-License-Identifier: Apache-2.0
"""The line that changes: on a real terminal it never mixes with other text."""

from __future__ import annotations

import io
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.pseudo_terminal import PseudoTerminal, screen
from tests.support.waiting import until
from tracer.util.queued_stream import QueuedStream
from tracer.util.status_line import StatusLine, is_own


@pytest.fixture
def terminal() -> Iterator[PseudoTerminal]:
    opened = PseudoTerminal()
    yield opened
    opened.close()


def test_text_and_line_never_mix(terminal: PseudoTerminal, monkeypatch: pytest.MonkeyPatch) -> None:
    """One thread writes text, one writes it through a queue, and the line is shown all the time."""
    monkeypatch.setenv("TERM", "xterm")
    line = StatusLine(terminal.stream)
    out = line.guarded(terminal.stream)
    assert line.is_live and out is not terminal.stream and out.isatty() and out.fileno() == terminal.fd
    stream = QueuedStream(terminal.fd, "text", guard=line.hidden)

    done, counts = threading.Event(), {"direct": 0, "queued": 0}

    def write() -> None:
        while not done.is_set():
            out.write(f"direct {counts['direct']}\n")
            counts["direct"] += 1
            time.sleep(0.001)

    writer = threading.Thread(target=write)
    writer.start()

    def enough() -> bool:
        stream.write(f"queued {counts['queued']}\n")
        counts["queued"] += 1
        line.show("status")
        return terminal.text.count("status") >= 20

    until(enough, pause=0.001)
    done.set()
    writer.join()
    stream.drain(10)
    line.erase()
    out.write("the end\n")
    until(lambda: "the end" in terminal.text)
    shown = [f"{kind} {number}" for kind, count in counts.items() for number in range(count)]
    assert sorted(screen(terminal.text)) == sorted(["", "the end", *shown])


def test_a_long_line_is_cut_to_the_terminal(terminal: PseudoTerminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(os, "get_terminal_size", lambda fd: os.terminal_size((20, 24)))
    line = StatusLine(terminal.stream)
    line.show("a\nb" + "x" * 100)
    until(lambda: "x" in terminal.text)
    assert screen(terminal.text) == ["a\\nb" + "x" * 15]


def test_nothing_in_the_background(terminal: PseudoTerminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(os, "tcgetpgrp", lambda fd: os.getpgrp() + 1)
    line = StatusLine(terminal.stream)
    line.show("a")
    with line.hidden():
        terminal.stream.write("b")
        terminal.stream.flush()
    until(lambda: "b" in terminal.text)
    assert terminal.text == "b"


def test_a_stopped_terminal_stops_nothing(terminal: PseudoTerminal, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-S: a recording goes on."""
    monkeypatch.setenv("TERM", "xterm")
    line = StatusLine(terminal.stream)
    line.show("before")
    until(lambda: "before" in terminal.text)
    terminal.type(b"\x13")
    until(lambda: not line._is_writable())
    line.show("stopped")
    terminal.type(b"\x11")
    until(line._is_writable)
    line.show("after")
    until(lambda: "after" in terminal.text)
    assert "stopped" not in terminal.text


def test_it_does_not_wait_for_a_writer(terminal: PseudoTerminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    line = StatusLine(terminal.stream)
    with line.hidden():
        thread = threading.Thread(target=line.show, args=("a",))
        thread.start()
        thread.join()
    assert "a" not in terminal.text


@pytest.mark.parametrize(("term", "is_wanted"), [("dumb", True), ("xterm", False)])
def test_no_line(terminal: PseudoTerminal, monkeypatch: pytest.MonkeyPatch, term: str, is_wanted: bool) -> None:
    monkeypatch.setenv("TERM", term)
    line = StatusLine(terminal.stream, is_wanted)
    line.show("a")
    line.erase()
    assert not line.is_live and line.guarded(terminal.stream) is terminal.stream
    terminal.stream.write("b")
    terminal.stream.flush()
    until(lambda: "b" in terminal.text)
    assert terminal.text == "b"


def test_elsewhere_nothing_is_written() -> None:
    stream = io.StringIO()
    line = StatusLine(stream)
    line.show("a")
    line.erase()
    assert not line.is_live and stream.getvalue() == "" and line.guarded(stream) is stream


def test_what_another_program_may_print(tmp_path: Path, terminal: PseudoTerminal) -> None:
    """The reader of a pipe may print to the same terminal, as `| jq` does."""
    with open(tmp_path / "file", "w") as file:
        assert is_own(file) and is_own(terminal.stream)
    reader, writer = os.pipe()
    with open(reader, "rb"), open(writer, "w") as pipe:
        assert not is_own(pipe)
    one, other = socket.socketpair()
    with one, other, one.makefile("w") as stream:
        assert not is_own(stream)
    assert not is_own(io.StringIO())
