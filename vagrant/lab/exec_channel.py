# SPDX-License-Identifier: Apache-2.0
"""Runs commands in a guest from the host, any number at once, each with its standard input, output and error."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from . import exec_frames
from .exec_frames import PIECE_BYTES, STATUS_FRAME, WINDOW_FRAME, FrameBuffer, Kind, Window

READ_BYTES = 1 << 16


class ChannelClosed(Exception):
    """The guest has ended, or takes no commands any more."""


@dataclass(frozen=True)
class Completed:
    """A command that has ended."""

    status: int
    output: bytes
    errors: bytes

    @property
    def text(self) -> str:
        """Its output without blanks at both ends."""
        return self.output.decode(errors="replace").strip()


class GuestCommand:
    """A command that runs in a guest.

    status: its exit status, None = it has not ended (or its end is not known, because the guest has ended).
    """

    def __init__(self, channel: ExecChannel, number: int) -> None:
        self._channel, self._number = channel, number
        self._window = Window()
        self._news = threading.Condition()
        self._pieces: deque[tuple[int, bytes]] = deque()
        self._is_abandoned = self._is_over = False
        self.status: int | None = None

    def write(self, data: bytes) -> None:
        """Sends input. Waits while the command does not read; what a command that has ended does not read is discarded."""
        left = memoryview(data)
        while left:
            taken = self._window.take(min(len(left), PIECE_BYTES))
            if not taken:
                return
            self._channel.send(self._number, Kind.INPUT, bytes(left[:taken]))
            left = left[taken:]

    def close_input(self) -> None:
        """The command reads the end of its input."""
        self._channel.send(self._number, Kind.INPUT_END)

    def kill(self) -> None:
        """Kills the command and the processes of its session."""
        self._channel.send(self._number, Kind.KILL)

    def read(self, timeout: float | None = None) -> tuple[int, bytes] | None:
        """The next piece of output: 1 = standard output or 2 = standard error, and bytes. None: the command has ended.

        Raises TimeoutError if there is none after `timeout` seconds.
        """
        with self._news:
            if not self._news.wait_for(lambda: self._pieces or self._is_over, timeout):
                raise TimeoutError
            if not self._pieces:
                return None
            where, data = self._pieces.popleft()
        self._channel.send(self._number, Kind.WINDOW, WINDOW_FRAME.pack(len(data)))
        return where, data

    def abandon(self) -> None:
        """Nothing reads the output any more: it is discarded; the command reads the end of its input."""
        self.close_input()
        with self._news:
            self._is_abandoned = True
            waiting = sum(len(data) for _, data in self._pieces)
            self._pieces.clear()
        if waiting:
            self._channel.send(self._number, Kind.WINDOW, WINDOW_FRAME.pack(waiting))

    def wait(self, timeout: float | None = None) -> Completed:
        """Reads everything to the end. Raises TimeoutError (the command still runs) or ChannelClosed."""
        until = None if timeout is None else time.monotonic() + timeout
        found: dict[int, bytearray] = {1: bytearray(), 2: bytearray()}
        while piece := self.read(None if until is None else max(0.0, until - time.monotonic())):
            found[piece[0]] += piece[1]
        if self.status is None:
            raise ChannelClosed(f"the guest has ended; the command's errors so far: {found[2].decode(errors='replace')}")
        return Completed(self.status, bytes(found[1]), bytes(found[2]))

    # ---- called by the channel ----

    def take(self, kind: Kind, body: bytes) -> None:
        """A frame of this command has come."""
        if kind is Kind.WINDOW:
            self._window.add(*WINDOW_FRAME.unpack(body))
            return
        with self._news:
            if kind is Kind.EXIT:
                (self.status,) = STATUS_FRAME.unpack(body)
            elif not self._is_abandoned:
                self._pieces.append((1 if kind is Kind.OUTPUT else 2, body))
            self._news.notify_all()
            is_unwanted = self._is_abandoned and kind is not Kind.EXIT
        if is_unwanted:
            self._channel.send(self._number, Kind.WINDOW, WINDOW_FRAME.pack(len(body)))
        if kind is Kind.EXIT:
            self.end()

    def end(self) -> None:
        """No frame comes any more."""
        self._window.close()
        with self._news:
            self._is_over = True
            self._news.notify_all()


class ExecChannel:
    """The host's end of the stream to one guest. It takes the socket, and closes it."""

    def __init__(self, stream: socket.socket) -> None:
        self._stream = stream
        self._commands: dict[int, GuestCommand] = {}
        self._last = 0
        self._lock = threading.Lock()
        self._sending = threading.Lock()
        self._is_closed = False
        threading.Thread(target=self._read, name="commands in a guest", daemon=True).start()

    def start(self, argv: Sequence[str], env: Mapping[str, str] | None = None, cwd: str = "") -> GuestCommand:
        """Starts a command. env: added to the guest's environment; cwd: its directory, "" = that of the repository."""
        with self._lock:
            self._last += 1
            command = self._commands[self._last] = GuestCommand(self, self._last)
            if self._is_closed:
                command.end()
        request = {"argv": list(argv), "env": dict(env or {}), "cwd": cwd}
        self.send(self._last, Kind.START, json.dumps(request).encode())
        return command

    def run(self, argv: Sequence[str], input: bytes = b"", timeout: float | None = 120.0) -> Completed:
        """Runs a command to its end. Raises TimeoutError (it was killed then) or ChannelClosed."""
        command = self.start(argv)
        command.write(input)
        command.close_input()
        try:
            return command.wait(timeout)
        except TimeoutError:
            command.kill()
            raise

    def send(self, number: int, kind: Kind, body: bytes = b"") -> None:
        """Sends a frame. What is for a guest that has ended is discarded."""
        with self._sending, suppress(OSError):
            self._stream.sendall(exec_frames.frame(number, kind, body))

    def _read(self) -> None:
        buffer = FrameBuffer()
        with suppress(OSError):
            while data := self._stream.recv(READ_BYTES):
                for number, kind, body in buffer.feed(data):
                    self._dispatch(number, kind, body)
        with self._lock:
            self._is_closed = True
            commands, self._commands = list(self._commands.values()), {}
        for command in commands:
            command.end()

    def _dispatch(self, number: int, kind: Kind, body: bytes) -> None:
        with self._lock:
            command = self._commands.pop(number, None) if kind is Kind.EXIT else self._commands.get(number)
        if command:
            command.take(kind, body)

    def close(self) -> None:
        """Ends the stream, and so the guest."""
        with suppress(OSError):
            self._stream.shutdown(socket.SHUT_RDWR)
        self._stream.close()


def pair() -> tuple[ExecChannel, int]:
    """A channel, and the descriptor of its other end."""
    ours, theirs = socket.socketpair()
    channel = ExecChannel(ours)
    descriptor = os.dup(theirs.fileno())
    theirs.close()
    return channel, descriptor
