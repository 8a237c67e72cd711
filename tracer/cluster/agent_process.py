# SPDX-License-Identifier: Apache-2.0
"""One kubectl process with an agent behind it: its pipes never block, and what it says on standard error is kept in part."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress

from tracer.cluster.node_stream import NodeStream
from tracer.cluster.recorded_clock import RecordedClock

MOST_ERROR_BYTES = 4096
"""Bytes of standard error that are kept: the last ones, which say why a program ends."""
MOST_UNSENT_BYTES = 1 << 16
"""Bytes that wait for the pipe to kubectl; then pings and credit wait."""
STATUS_SECONDS = 0.5
"""Time in which a program whose output has ended should have ended, s."""


class AgentProcess:
    """A running kubectl. Raises OSError if it cannot be started.

    Args:
        node: Name of the node.
        command: The program and its arguments.
        clock: The clock of the packets that it sends; None = that of the node, which answers pings.

    Attributes:
        stream: The frames.
        last_word: time.monotonic() when the node last said something.
        is_silent: The user knows that it says nothing.
    """

    def __init__(self, node: str, command: Sequence[str], clock: RecordedClock | None = None) -> None:
        self.node, self.stream = node, NodeStream(clock)
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for this process, which then asks the agents for their summaries
        )
        assert self._process.stdin and self._process.stdout and self._process.stderr
        self.input, self.output, self.errors = (
            each.fileno() for each in (self._process.stdin, self._process.stdout, self._process.stderr)
        )
        for fd in (self.input, self.output, self.errors):
            os.set_blocking(fd, False)
        self._unsent: deque[bytes] = deque()
        self._unsent_bytes = 0
        self._error_text = b""
        self._lock = threading.Lock()
        self.began = self.last_word = time.monotonic()
        self.is_silent = False
        self.send(self.stream.greeting())

    def send(self, data: bytes) -> None:
        """Sends frames, or keeps them until the pipe takes them. Frames are never sent in part."""
        with self._lock:
            if data:
                self._unsent.append(data)
                self._unsent_bytes += len(data)
            with suppress(BlockingIOError, BrokenPipeError, OSError):
                while self._unsent:
                    piece = self._unsent[0]
                    written = os.write(self.input, piece)
                    self._unsent_bytes -= written
                    if written < len(piece):
                        self._unsent[0] = piece[written:]
                    else:
                        self._unsent.popleft()

    def ping(self, now: int) -> None:
        """Sends a ping, unless kubectl takes nothing. now: the client's clock, ns."""
        if self._unsent_bytes < MOST_UNSENT_BYTES:
            self.send(self.stream.ping(now))

    def add_error(self, data: bytes) -> None:
        """Takes bytes of standard error."""
        self._error_text = (self._error_text + data)[-MOST_ERROR_BYTES:]

    def problem(self) -> str:
        """Why the program ended: the last line of standard error, or its status."""
        lines = [line.strip() for line in self._error_text.decode(errors="replace").splitlines() if line.strip()]
        ours = [line for line in lines if line.startswith("k8snet-trace: ")]
        # kubectl's own line about the status of the program in the container comes after the program's.
        last = ours[-1].removeprefix("k8snet-trace: ") if ours else lines[-1] if lines else ""
        if last:
            return last
        with suppress(subprocess.TimeoutExpired):
            return f"kubectl ended with status {self._process.wait(STATUS_SECONDS)}"
        return "its stream has ended"

    def poll(self) -> int | None:
        """The exit status of kubectl; None = it runs."""
        return self._process.poll()

    def close(self) -> None:
        """Closes the input: the agent removes its probes and ends."""
        with suppress(OSError):
            assert self._process.stdin
            self._process.stdin.close()

    def terminate(self) -> None:
        """Asks kubectl to end. The agent ends with its input, or by its lease."""
        self._process.terminate()

    def kill(self) -> None:
        """Ends kubectl, and releases the pipes."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            with suppress(OSError):
                if stream:
                    stream.close()
