# SPDX-License-Identifier: Apache-2.0
"""A terminal, and what is on its screen."""

from __future__ import annotations

import os
import pty
import re
import select
import threading

from tracer.util.status_line import ERASE


def screen(data: str) -> list[str]:
    """The lines on a terminal after it was sent `data`: the line that is erased before anything else is written is gone."""
    lines = []
    for line in data.replace("\r\n", "\n").split("\n"):
        shown = ""
        for part in re.split(f"({re.escape(ERASE)})", line):
            shown = "" if part == ERASE else shown + part
        lines.append(shown)
    return lines


class PseudoTerminal:
    """A terminal; what was written to it is read by a thread."""

    def __init__(self) -> None:
        self._reader, self.fd = pty.openpty()
        self.stream = open(self.fd, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 - see close()
        self._data = b""
        self._stop_reads, self._stop_writes = os.pipe()
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        # No read may wait: a terminal lasts until the last read of it has returned, whoever closed it meanwhile.
        while self._stop_reads not in select.select([self._reader, self._stop_reads], [], [])[0]:
            if not self._read_once():
                return

    def _read_once(self) -> bytes:
        try:
            data = os.read(self._reader, 1 << 16)
        except OSError:  # the other side is closed
            data = b""
        self._data += data
        return data

    def type(self, keys: bytes) -> None:
        """Sends what a person types."""
        os.write(self._reader, keys)

    @property
    def text(self) -> str:
        return self._data.decode(errors="replace")  # the last character may be cut off

    def hang_up(self) -> None:
        """Closes the terminal at once, as the end of its window does."""
        self.stream.close()
        os.close(self.fd)
        os.close(self._stop_writes)
        self._thread.join()
        os.close(self._stop_reads)
        os.close(self._reader)

    def close(self) -> None:
        """Closes the terminal when all that was written to it was read."""
        self.stream.close()
        os.close(self.fd)
        self._thread.join()
        for each in (self._reader, self._stop_reads, self._stop_writes):
            os.close(each)
