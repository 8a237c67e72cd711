# SPDX-License-Identifier: Apache-2.0
"""A process that takes packets from a queue of NFQUEUE rules, and accepts or drops them."""

from __future__ import annotations

import errno
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from scenes.netns import Child, entered
from scenes.topology import STATE_DIR

_NETLINK_NETFILTER, _QUEUE = 12, 3
_PACKET, _VERDICT, _CONFIG = 0, 1, 2
_BIND, _COPY_META, _COPY_PACKET = 1, 1, 2
_COMMAND, _PARAMETERS, _MAXIMUM, _MASK, _FLAGS = range(1, 6)
_FAIL_OPEN = 1
DROP, ACCEPT, REPEAT = 0, 1, 4
_PAYLOAD = 10
_COPIED_BYTES = 256
_F_REQUEST, _F_ACK = 0x1, 0x4


@dataclass(frozen=True)
class Options:
    """How a queue and its process are set up.

    Attributes:
        maximum: Most packets that wait in the queue; None = the kernel's default, 1024.
        buffer_bytes: Receive buffer of the process's socket; None = the kernel's default.
        fail_open: The kernel lets packets pass while there is no room for them.
        delay_seconds: Time before each answer.
        silent: The process reads no packet.
    """

    maximum: int | None = None
    buffer_bytes: int | None = None
    fail_open: bool = False
    delay_seconds: float = 0
    silent: bool = False


PLAIN = Options()


def start(
    number: int, ns: str | None = None, decide: Callable[[bytes], int] | None = None, options: Options = PLAIN
) -> Child[None]:
    """Binds a process to a queue; it is bound when this returns, and ends with the scene. OSError if the kernel refuses.

    Args:
        number: Number of the queue.
        ns: Network namespace of the queue; None = this one.
        decide: The answer, DROP, ACCEPT or REPEAT, to a packet, from its first bytes, IP header first; None = each one passes.
        options: How the queue and its process are set up.
    """
    STATE_DIR.mkdir(parents=True, exist_ok=True)
    with entered(ns):
        sock = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_NETFILTER)
    with sock:
        sock.bind((0, 0))
        if options.buffer_bytes:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, options.buffer_bytes)
        _configure(sock, number, _COMMAND, struct.pack("!BBH", _BIND, 0, socket.AF_INET))
        copy = struct.pack("!IB", _COPIED_BYTES, _COPY_PACKET) if decide else struct.pack("!IB", 0, _COPY_META)
        _configure(sock, number, _PARAMETERS, copy + bytes(3))
        if options.maximum:
            _configure(sock, number, _MAXIMUM, struct.pack("!I", options.maximum))
        if options.fail_open:
            flags = struct.pack("!I", _FAIL_OPEN)
            _configure(sock, number, _MASK, flags, _attribute(_FLAGS, flags))
        child: Child[None] = Child(
            ns,
            partial(_serve, sock, number, decide, options),
            comm="scene-queue",
            log=STATE_DIR / "queue.log",
            keep=[sock.fileno()],
        )
    (STATE_DIR / f"{child.pid}-queue.pid").touch()
    return child


def _configure(sock: socket.socket, number: int, attribute: int, value: bytes, more: bytes = b"") -> None:
    sock.send(_message(_CONFIG, number, attribute, value, _F_REQUEST | _F_ACK, more))
    error = struct.unpack_from("=i", sock.recv(8192), 16)[0]
    if error:
        raise OSError(-error, f"queue {number}")


def _attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(value), kind) + value


def _message(kind: int, number: int, attribute: int, value: bytes, flags: int, more: bytes = b"") -> bytes:
    body = struct.pack("!BBH", socket.AF_UNSPEC, 0, number) + _attribute(attribute, value) + more
    return struct.pack("=IHHII", 16 + len(body), _QUEUE << 8 | kind, flags, 1, 0) + body


def _serve(sock: socket.socket, number: int, decide: Callable[[bytes], int] | None, options: Options) -> None:
    """Decides about each packet. A packet's first attribute is its header, which begins with its id."""
    while options.silent:
        time.sleep(60)
    while True:
        try:
            message = sock.recv(65536)
        except OSError as error:
            if error.errno != errno.ENOBUFS:  # the kernel has dropped messages
                raise
            continue
        kind = struct.unpack_from("=H", message, 4)[0]
        if kind == _QUEUE << 8 | _PACKET:
            time.sleep(options.delay_seconds)
            answer = ACCEPT if decide is None else int(decide(_payload(message)))
            sock.send(_message(_VERDICT, number, 2, struct.pack("!I", answer) + message[24:28], _F_REQUEST))


def _payload(message: bytes) -> bytes:
    """The packet in a message of the queue."""
    at = 20
    while at + 4 <= len(message):
        length, kind = struct.unpack_from("=HH", message, at)
        if kind == _PAYLOAD:
            return message[at + 4 : at + length]
        at += (length + 3) & ~3
    return b""
