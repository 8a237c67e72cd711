# SPDX-License-Identifier: Apache-2.0
"""Notices that a terminal was closed: a program that neither reads nor writes gets no error, and not each one gets a SIGHUP."""

from __future__ import annotations

import select
from typing import TextIO


class TerminalWatch:
    """Watches a terminal. stream: a stream on it; None or another stream = it is never closed."""

    def __init__(self, stream: TextIO | None) -> None:
        self._poll: select.poll | None = None
        try:
            if stream and stream.isatty():
                self._poll = select.poll()
                self._poll.register(stream.fileno(), 0)
        except (OSError, ValueError):  # the stream is closed
            self._poll = None

    @property
    def is_closed(self) -> bool:
        """Whether the terminal is gone, as after the end of its window or of its ssh connection."""
        return self._poll is not None and bool(self._poll.poll(0))
