# SPDX-License-Identifier: Apache-2.0
"""The guest's side: runs the commands that the host sends, each in its own session. `python3 -m lab.exec_server DEVICE`.

As a container runtime does: the end of a command's input ends the command only if it wants to, and its output waits while the
host does not read.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from contextlib import suppress

from lab.exec_frames import NO_PROGRAM, PIECE_BYTES, STATUS_FRAME, WINDOW_FRAME, FrameBuffer, Kind, Window, frame

READ_BYTES = 1 << 16


class Stream:
    """The byte stream to the host."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._lock = threading.Lock()

    def send(self, number: int, kind: Kind, body: bytes = b"") -> None:
        left = memoryview(frame(number, kind, body))
        with self._lock:
            while left:
                left = left[os.write(self.descriptor, left) :]


class Command:
    """One command."""

    def __init__(self, stream: Stream, number: int, body: bytes) -> None:
        self._stream, self._number = stream, number
        self._window = Window()
        self._input: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        wanted = json.loads(body)
        try:
            self._process = subprocess.Popen(
                wanted["argv"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=os.environ | wanted["env"],
                cwd=wanted["cwd"] or None,
                start_new_session=True,
                bufsize=0,
            )
        except OSError as error:
            stream.send(number, Kind.ERROR, f"{wanted['argv'][0]}: {error.strerror}\n".encode())
            stream.send(number, Kind.EXIT, STATUS_FRAME.pack(NO_PROGRAM))
            raise
        for work in (self._write_input, self._complete):
            threading.Thread(target=work, daemon=True).start()

    def take(self, kind: Kind, body: bytes) -> None:
        """A frame for this command."""
        match kind:
            case Kind.INPUT:
                self._input.put(body)
            case Kind.INPUT_END:
                self._input.put(b"")
            case Kind.WINDOW:
                self._window.add(*WINDOW_FRAME.unpack(body))
            case Kind.KILL:
                with suppress(ProcessLookupError):
                    os.killpg(self._process.pid, signal.SIGKILL)

    def _write_input(self) -> None:
        pipe = self._process.stdin
        assert pipe
        while data := self._input.get():
            left = memoryview(data)
            with suppress(OSError):  # a command that does not read its input
                while left:
                    left = left[pipe.write(left) :]
            self._stream.send(self._number, Kind.WINDOW, WINDOW_FRAME.pack(len(data)))
        with suppress(OSError):
            pipe.close()

    def _complete(self) -> None:
        """Sends the output, and at its end the status."""
        pumps = [
            threading.Thread(target=self._send_output, args=(pipe.fileno(), kind), daemon=True)
            for pipe, kind in ((self._process.stdout, Kind.OUTPUT), (self._process.stderr, Kind.ERROR))
            if pipe
        ]
        for pump in pumps:
            pump.start()
        for pump in pumps:
            pump.join()
        status = self._process.wait()
        self._input.put(b"")
        self._stream.send(self._number, Kind.EXIT, STATUS_FRAME.pack(status))

    def _send_output(self, descriptor: int, kind: Kind) -> None:
        while room := self._window.take(PIECE_BYTES):
            data = os.read(descriptor, room)
            self._window.add(room - len(data))
            if not data:
                return
            self._stream.send(self._number, kind, data)


def serve(descriptor: int) -> None:
    """Runs commands until the host ends the stream."""
    stream, buffer = Stream(descriptor), FrameBuffer()
    commands: dict[int, Command] = {}
    while data := os.read(descriptor, READ_BYTES):
        for number, kind, body in buffer.feed(data):
            if kind is Kind.START:
                with suppress(OSError):
                    commands[number] = Command(stream, number, body)
            elif number in commands:
                commands[number].take(kind, body)


if __name__ == "__main__":
    serve(os.open(sys.argv[1], os.O_RDWR))
