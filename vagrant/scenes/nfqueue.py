# SPDX-License-Identifier: Apache-2.0
"""A process that takes packets from a queue of NFQUEUE rules, and accepts or drops them."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable
from functools import partial

from scenes.netns import Child, entered
from scenes.topology import STATE_DIR

_NETLINK_NETFILTER, _QUEUE = 12, 3
_PACKET, _VERDICT, _CONFIG = 0, 1, 2
_BIND, _COPY_META, _COPY_PACKET = 1, 1, 2
_DROP, _ACCEPT = 0, 1
_PAYLOAD = 10
_COPIED_BYTES = 256
_F_REQUEST, _F_ACK = 0x1, 0x4


def start(number: int, ns: str | None = None, decide: Callable[[bytes], bool] | None = None) -> Child[None]:
    """Binds a process to a queue; it is bound when this returns, and ends with the scene. OSError if the kernel refuses.

    Args:
        number: Number of the queue.
        ns: Network namespace of the queue; None = this one.
        decide: Whether a packet passes, from its first bytes, IP header first; None = each one does.
    """
    STATE_DIR.mkdir(parents=True, exist_ok=True)
    with entered(ns):
        sock = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_NETFILTER)
    with sock:
        sock.bind((0, 0))
        _configure(sock, number, 1, struct.pack("!BBH", _BIND, 0, socket.AF_INET))
        copy = struct.pack("!IB", _COPIED_BYTES, _COPY_PACKET) if decide else struct.pack("!IB", 0, _COPY_META)
        _configure(sock, number, 2, copy + bytes(3))
        child: Child[None] = Child(
            ns, partial(_serve, sock, number, decide), comm="scene-queue", log=STATE_DIR / "queue.log", keep=[sock.fileno()]
        )
    (STATE_DIR / f"{child.pid}-queue.pid").touch()
    return child


def _configure(sock: socket.socket, number: int, attribute: int, value: bytes) -> None:
    sock.send(_message(_CONFIG, number, attribute, value, _F_REQUEST | _F_ACK))
    error = struct.unpack_from("=i", sock.recv(8192), 16)[0]
    if error:
        raise OSError(-error, f"queue {number}")


def _message(kind: int, number: int, attribute: int, value: bytes, flags: int) -> bytes:
    body = struct.pack("!BBH", socket.AF_UNSPEC, 0, number) + struct.pack("=HH", 4 + len(value), attribute) + value
    return struct.pack("=IHHII", 16 + len(body), _QUEUE << 8 | kind, flags, 1, 0) + body


def _serve(sock: socket.socket, number: int, decide: Callable[[bytes], bool] | None) -> None:
    """Decides about each packet. A packet's first attribute is its header, which begins with its id."""
    while True:
        message = sock.recv(65536)
        kind = struct.unpack_from("=H", message, 4)[0]
        if kind == _QUEUE << 8 | _PACKET:
            answer = _ACCEPT if decide is None or decide(_payload(message)) else _DROP
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
