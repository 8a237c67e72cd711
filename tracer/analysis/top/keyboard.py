# SPDX-License-Identifier: Apache-2.0
"""Reads single keys from the terminal, and restores its settings."""

from __future__ import annotations

import os
import select
import sys
import termios
import threading
import tty
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from tracer.util.worker import Worker

POLL_SECONDS = 0.2
"""Interval at which the thread looks whether it should end, s."""
END_SECONDS = 1.0
"""Longest wait for the end of the thread, s."""
_SEQUENCES = {"\x1b[A": "up", "\x1b[B": "down", "\x1bOA": "up", "\x1bOB": "down"}
_NAMES = {"\r": "enter", "\n": "enter", "\x1b": "back", "\x7f": "back", "\x08": "back", "k": "up", "j": "down"}


def decoded(text: str) -> list[str]:
    """The keys in what a terminal sent: a character, or `up`, `down`, `enter`, `back`. Unknown sequences are left out."""
    keys = []
    while text:
        sequence = next((s for s in _SEQUENCES if text.startswith(s)), None)
        if sequence:
            keys.append(_SEQUENCES[sequence])
            text = text[len(sequence) :]
        elif text[0] == "\x1b" and text[1:2] in ("[", "O"):
            return keys
        else:
            keys.append(_NAMES.get(text[0], text[0]))
            text = text[1:]
    return keys


class Keyboard:
    """Calls a function with each key while it is open; Ctrl-C stays a signal. It does nothing where stdin is no terminal.

    Args:
        on_key: Called in a thread of its own.
    """

    def __init__(self, on_key: Callable[[str], None]) -> None:
        self._on_key, self._ended = on_key, threading.Event()
        self._fd = sys.stdin.fileno()
        self._before: list[Any] | None = None
        self._thread: Worker | None = None

    def open(self) -> None:
        """Begins to read, unless another process has the terminal."""
        if not os.isatty(self._fd) or not self._is_foreground():
            return
        self._before = termios.tcgetattr(self._fd)
        tty.setcbreak(self._fd)
        self._thread = Worker("keyboard", self._read).start()

    def _is_foreground(self) -> bool:
        """Whether no other process group has the terminal; True for a terminal that is not the one of this session."""
        try:
            return os.tcgetpgrp(self._fd) == os.getpgrp()
        except OSError:  # ENOTTY
            return True

    def close(self) -> None:
        """Restores the terminal."""
        self._ended.set()
        if self._before is not None:
            with suppress(termios.error):
                termios.tcsetattr(self._fd, termios.TCSADRAIN, self._before)
            self._before = None
        if self._thread:
            self._thread.join(END_SECONDS)

    def _read(self) -> bool:
        """Waits for keys; False = nothing follows."""
        if self._ended.is_set():
            return False
        if select.select([self._fd], [], [], POLL_SECONDS)[0] and not self._ended.is_set():
            try:
                data = os.read(self._fd, 64)
            except OSError:
                return False
            if not data:
                return False
            for key in decoded(data.decode("utf-8", "replace")):
                self._on_key(key)
        return True
