# SPDX-License-Identifier: Apache-2.0
"""2,000 packets a second, shown as one line each and as a table: each packet is shown or counted, and Ctrl-C ends the run."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import termios
import threading
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from scenes import load
from tests.kernel.conftest import ROOT
from tests.kernel.test_command import COMMAND, ENVIRONMENT, START_SECONDS
from tests.kernel.untouched import settled, state
from tests.support.waiting import until
from tracer.pipeline.shutdown import EXPLAINING

pytestmark = pytest.mark.thorough

RATE, SECONDS = 2_000, 20.0
UNSERVED = 9
"""The port of the stream; nothing listens there, the node forwards it."""
END_SECONDS = 300
ANSWER_SECONDS = 10.0
"""A second on a node; an emulated machine beside others is slower."""
SCHEMA = Draft202012Validator(json.loads((ROOT / "tracer/render/schema.json").read_text()))
SHORT_SECONDS = 6.0
TRACE = ["--no-kube", "--port", str(UNSERVED), "--proto", "udp"]


class Traced:
    """A run of the command while the stream is sent.

    out, err: its output; sent: packets that the node forwarded; answered: Ctrl-C had an effect within ANSWER_SECONDS, and its
    time is printed.
    """

    def __init__(self, directory: Path, *words: str, seconds: float = SECONDS) -> None:
        before, ready = state(), directory / "ready"
        out, err = directory / "out", directory / "err"
        options = ["--ready-file", str(ready), *TRACE]
        with out.open("wb") as stdout, err.open("wb") as stderr:
            process = subprocess.Popen([*COMMAND, *words, *options], stdout=stdout, stderr=stderr, env=ENVIRONMENT, cwd=ROOT)
        try:
            wait_for(ready, process, err)
            forwarded = load.drained()
            load.udp_stream(RATE, seconds, port=UNSERVED).result()
            time.sleep(1)
            self.sent = load.drained() - forwarded
            process.send_signal(signal.SIGINT)
            began = time.monotonic()
            latest = began + ANSWER_SECONDS
            while process.poll() is None and EXPLAINING not in err.read_text() and time.monotonic() < latest:
                time.sleep(0.05)
            answer = time.monotonic() - began
            self.answered = process.poll() is not None or EXPLAINING in err.read_text()
            self.status = process.wait(END_SECONDS)
            print(f"Ctrl-C was answered after {answer:.2f} s, the run ended after {time.monotonic() - began:.2f} s")
        finally:
            process.kill()
        self.out, self.err = out.read_text(), err.read_text()
        print(f"{' '.join(words)}: sent {self.sent}\n{self.err}\n{self.out[-1500:]}")
        assert self.status == 0 and "Traceback" not in self.err
        assert settled(before) == before


def wait_for(ready: Path, process: subprocess.Popen[Any], err: Path) -> None:
    """Waits until the probes are attached."""
    latest = time.monotonic() + START_SECONDS
    while not ready.exists():
        assert process.poll() is None and time.monotonic() < latest, err.read_text()
        time.sleep(0.2)


def test_one_line_a_packet(node: None, tmp_path: Path) -> None:
    run = Traced(tmp_path, "--oneline")
    _, shown_text, summary = re.split(r"^(\d+) packets? in ", run.out, flags=re.MULTILINE)
    shown = int(shown_text)
    packets = [line for line in run.out.splitlines() if f":{UNSERVED}  UDP  " in line]
    assert len(packets) == shown, "each packet of the summary is one line"
    times = [line[:12] for line in packets]
    assert sum(one > other for one, other in pairwise(times)) <= len(times) / 10, "mostly in order"
    assert run.answered, "Ctrl-C ends the run, or a note says soon that it is ending"
    left_out, events = found(r"(\d+) whole packets", summary), found(r"(\d+) of (?!the)\w+", summary)
    missing = left_out + found(r"could explain (\d+) more", summary) + found(r"(\d+) packets? not shown", summary)
    complete(run.sent, shown, missing, events)


def test_table(node: None, tmp_path: Path) -> None:
    run = Traced(tmp_path, "top", "--by", "client", "-o", "json", "--interval", "2")
    intervals = [json.loads(line) for line in run.out.splitlines()]
    for interval in intervals:
        SCHEMA.validate(interval)
        rows = [*interval["rows"], *([interval["other"]] if "other" in interval else [])]
        assert sum(row["packets"] for row in rows) == interval["total"]["packets"], "no packet is outside of the rows"
    assert run.answered, "Ctrl-C ends the run, or a note says soon that it is ending"
    lost = intervals[-1]["lost_so_far"]
    assert len(intervals) > 2 and {row["key"] for interval in intervals for row in interval["rows"]} == {"192.168.56.1"}
    missing = lost["packets_left_out"] + lost["packets_unexplained"]
    complete(run.sent, sum(interval["total"]["packets"] for interval in intervals), missing, lost["events"])


def complete(sent: int, shown: int, missing: int, events: int) -> None:
    """Each packet is shown, or counted as missing. A packet can also lose all its events; then these are counted."""
    print(f"sent {sent}, shown {shown}, missing {missing}, lost events {events}")
    assert sent > RATE, "hardly any packets were sent"
    assert shown and (shown + missing == sent if not events else sent - events <= shown + missing <= sent)


def found(pattern: str, text: str) -> int:
    """The sum of all numbers that a pattern finds."""
    return sum(int(number) for number in re.findall(pattern, text))


def test_screen_is_restored(node: None, tmp_path: Path) -> None:
    """On a terminal: the table changes, Ctrl-C closes the alternate screen, and the last table stays."""
    terminal, stream = pty.openpty()
    termios.tcsetwinsize(stream, (24, 80))
    before, ready = termios.tcgetattr(stream), tmp_path / "ready"
    with (tmp_path / "err").open("wb") as err:
        process = subprocess.Popen(
            [*COMMAND, "top", "--by", "client", "--ready-file", str(ready), *TRACE],
            stdin=stream, stdout=stream, stderr=err, cwd=ROOT, env=ENVIRONMENT | {"TERM": "xterm"}, start_new_session=True,
        )  # fmt: skip
    screen = bytearray()
    reader = threading.Thread(target=read_all, args=(terminal, screen), daemon=True)
    reader.start()
    try:
        wait_for(ready, process, tmp_path / "err")
        load.udp_stream(RATE, SHORT_SECONDS, port=UNSERVED).result()
        until(lambda: b"192.168.56.1" in screen, lambda: screen[-3000:].decode(errors="replace"), patience=END_SECONDS)
        process.send_signal(signal.SIGINT)
        assert process.wait(END_SECONDS) == 0, (tmp_path / "err").read_text()
        assert termios.tcgetattr(stream) == before
    finally:
        process.kill()
        os.close(stream)
    reader.join(30)
    text = screen.decode(errors="replace")
    print(text[-3000:])
    shown, left, after = text.partition("\x1b[?1049l")
    assert "\x1b[?1049h" in shown and left and "top by client" in after and "192.168.56.1" in after
    assert "missing" in after and "Traceback" not in text


def read_all(terminal: int, into: bytearray) -> None:
    """Reads a terminal until its other side is closed."""
    try:
        while chunk := os.read(terminal, 65536):
            into += chunk
    except OSError:  # EIO
        return
