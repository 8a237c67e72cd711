# SPDX-License-Identifier: Apache-2.0
"""One `exec` over a WebSocket, as an API server does it: subprotocol v5.channel.k8s.io, one channel a stream.

Channels: 0 standard input, 1 standard output, 2 standard error, 3 how the command ended, 4 the terminal's size, 255 the end of
the stream in its body.
"""

from __future__ import annotations

import json
import socket
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from typing import Protocol

from websockets.datastructures import Headers
from websockets.frames import Frame, Opcode
from websockets.http11 import Request
from websockets.protocol import State
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol

SUBPROTOCOL = "v5.channel.k8s.io"
INPUT, STATUS, RESIZE, CLOSE = 0, 3, 4, 255
READ_BYTES = 1 << 16
NORMAL_CLOSURE = 1000


class ExecSession(Protocol):
    """A running command, in a container or elsewhere."""

    status: int | None

    def write(self, data: bytes) -> None:
        """Sends input; may wait until the command reads."""

    def close_input(self) -> None:
        """The command reads the end of its input."""

    def read(self) -> tuple[int, bytes] | None:
        """Waits for output: 1 = standard output or 2 = standard error, and bytes. None: the command has ended."""

    def abandon(self) -> None:
        """Nothing reads the output any more."""


class ExecSocket:
    """The server's end of one `exec`.

    cut: bytes of standard output after which the connection is broken, in the middle of what the command wrote; None = never.
    """

    def __init__(self, handler: BaseHTTPRequestHandler, cut: int | None = None) -> None:
        self._connection: socket.socket = handler.connection
        self._protocol = ServerProtocol(subprotocols=[Subprotocol(SUBPROTOCOL)], max_size=None)
        self._lock = threading.Lock()
        self._left = cut
        # The HTTP server has read the request already: the protocol gets it once more.
        self._protocol.receive_data(Request(handler.path, Headers(list(handler.headers.items()))).serialize())
        for request in self._protocol.events_received():
            assert isinstance(request, Request)
            self._protocol.send_response(self._protocol.accept(request))
        self._flush()

    @property
    def is_open(self) -> bool:
        """Whether the client has agreed to the subprotocol, and no side has ended."""
        return self._protocol.state is State.OPEN and self._protocol.subprotocol == SUBPROTOCOL

    def serve(self, session: ExecSession) -> None:
        """Carries the streams until the command or the client has ended."""
        sender = threading.Thread(target=self._send_output, args=(session,), daemon=True)
        sender.start()
        with suppress(OSError):
            self._take_input(session)
        session.abandon()
        sender.join()

    def fail(self, message: str) -> None:
        """The command cannot be started."""
        self._send(STATUS, json.dumps(_failure(message)).encode())
        self._close()

    def _take_input(self, session: ExecSession) -> None:
        """Until the client closes the connection."""
        message = b""
        while data := self._connection.recv(READ_BYTES):
            with self._lock:
                self._protocol.receive_data(data)
                events = self._protocol.events_received()
            self._flush()
            for event in events:
                if isinstance(event, Frame) and event.opcode in (Opcode.BINARY, Opcode.TEXT, Opcode.CONT):
                    message += bytes(event.data)
                    if event.fin:
                        self._take(session, message)
                        message = b""
            if self._protocol.state is not State.OPEN:
                return

    def _take(self, session: ExecSession, message: bytes) -> None:
        match message[:1], message[1:]:
            case b"\x00", data:
                session.write(data)
            case b"\xff", b"\x00":
                session.close_input()

    def _send_output(self, session: ExecSession) -> None:
        with suppress(OSError):
            while piece := session.read():
                channel, data = piece
                if channel == 1 and self._left is not None:
                    self._left -= len(data)
                    if self._left < 0:
                        self._send(channel, data[: self._left])
                        self._connection.shutdown(socket.SHUT_RDWR)
                        return
                self._send(channel, data)
            self._send(STATUS, json.dumps(ended(session.status)).encode())
            self._close()

    def _send(self, channel: int, data: bytes) -> None:
        with self._lock:
            if self._protocol.state is State.OPEN:
                self._protocol.send_binary(bytes([channel]) + data)
        self._flush()

    def _close(self) -> None:
        with self._lock:
            if self._protocol.state is State.OPEN:
                self._protocol.send_close(NORMAL_CLOSURE)
        self._flush()

    def _flush(self) -> None:
        with self._lock:
            for data in self._protocol.data_to_send():
                if data:
                    self._connection.sendall(data)


def ended(status: int | None) -> dict[str, object]:
    """The Status object that says how a command ended. None: that is not known."""
    if status == 0:
        return {"metadata": {}, "status": "Success"}
    if status is None:
        return _failure("the container has ended")
    code = status if status > 0 else 128 - status
    return {
        "metadata": {},
        "status": "Failure",
        "message": f"command terminated with non-zero exit code: exit status {code}",
        "reason": "NonZeroExitCode",
        "details": {"causes": [{"reason": "ExitCode", "message": str(code)}]},
    }


def _failure(message: str) -> dict[str, object]:
    return {"metadata": {}, "status": "Failure", "message": message, "reason": "InternalError", "code": 500}
