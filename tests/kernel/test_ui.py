# SPDX-License-Identifier: Apache-2.0
"""The full-screen view of 2,000 packets a second: each packet is shown or counted, Ctrl-C ends it, the terminal is restored."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from scenes import load
from tests.kernel.conftest import ROOT
from tests.kernel.test_command import COMMAND, ENVIRONMENT, START_SECONDS
from tests.kernel.test_top import END_SECONDS, RATE, SECONDS, SHORT_SECONDS, TRACE, UNSERVED, complete, found
from tests.kernel.untouched import settled, state
from tests.support.pseudo_terminal import PseudoTerminal

pytestmark = pytest.mark.thorough
pytest.importorskip("textual", "2.1")

LEAVES = "\x1b[?1049l"
"""What a terminal gets when the screen is closed."""
SHOWN_SECONDS = 120
"""Longest time until a connection is on the screen, s. A busy emulator explains the first packets long after they were sent."""


@pytest.fixture
def terminal() -> Iterator[PseudoTerminal]:
    one = PseudoTerminal()
    termios.tcsetwinsize(one.fd, (40, 120))
    yield one
    one.close()


class Viewed:
    """A run of `ui` while the stream is sent; `end` ends it. sent: packets that the node forwarded; after: what it printed."""

    def __init__(
        self, terminal: PseudoTerminal, directory: Path, seconds: float, end: Callable[[subprocess.Popen[bytes]], None]
    ) -> None:
        before, settings, ready = state(), termios.tcgetattr(terminal.fd), directory / "ready"
        process = subprocess.Popen(
            [*COMMAND, "ui", "--ready-file", str(ready), *TRACE],
            stdin=terminal.fd, stdout=terminal.fd, stderr=terminal.fd,
            cwd=ROOT, env=ENVIRONMENT | {"TERM": "xterm-256color"}, start_new_session=True,
        )  # fmt: skip
        try:
            until = time.monotonic() + START_SECONDS
            while not ready.exists():
                assert process.poll() is None and time.monotonic() < until, terminal.text
                time.sleep(0.2)
            forwarded = load.drained()
            load.udp_stream(RATE, seconds, port=UNSERVED).result()
            until = time.monotonic() + SHOWN_SECONDS
            while f":{UNSERVED}" not in terminal.text and time.monotonic() < until:
                time.sleep(0.2)
            time.sleep(1)
            self.sent = load.drained() - forwarded
            began = time.monotonic()
            end(process)
            while LEAVES not in terminal.text and time.monotonic() - began < END_SECONDS:
                time.sleep(0.05)
            closed = time.monotonic() - began
            self.status = process.wait(END_SECONDS)
            self.seconds = time.monotonic() - began
        finally:
            process.kill()
        shown, _, self.after = terminal.text.rpartition(LEAVES)
        print(f"sent {self.sent}; the screen was closed after {closed:.2f} s, the run ended after {self.seconds:.2f} s")
        print(self.after)
        assert "\x1b[?1049h" in shown and f":{UNSERVED}" in shown, "the connection was on the screen"
        assert self.status == 0 and "Traceback" not in terminal.text
        assert termios.tcgetattr(terminal.fd) == settings
        assert settled(before) == before

    def check_complete(self) -> None:
        """Each packet was shown, or is counted in the summary."""
        plain = re.sub(r"\x1b\[[0-9;?]*\w", "", self.after)
        shown = found(r"(\d+) packets? in [\d.]+ s", plain)
        missing = found(r"(\d+) whole packets", plain) + found(r"could explain (\d+) more", plain)
        missing += found(r"(\d+) packets? not shown", plain)
        complete(self.sent, shown, missing, found(r"(\d+) of (?!the)\w+", plain))


def test_a_stream_and_ctrl_c(node: None, terminal: PseudoTerminal, tmp_path: Path) -> None:
    Viewed(terminal, tmp_path, SECONDS, lambda process: terminal.type(b"\x03")).check_complete()


def test_a_signal_ends_it(node: None, terminal: PseudoTerminal, tmp_path: Path) -> None:
    Viewed(terminal, tmp_path, SHORT_SECONDS, lambda process: os.kill(process.pid, signal.SIGTERM)).check_complete()
