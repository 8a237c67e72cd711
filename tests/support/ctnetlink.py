# SPDX-License-Identifier: Apache-2.0
"""Messages of ctnetlink as the kernel sends them, and a listener that has received them."""

from __future__ import annotations

import socket
import struct

from tracer.connections import conntrack_events
from tracer.connections.conntrack_events import Datagram
from tracer.model.endpoints import Endpoints

ORIG = Endpoints("192.168.56.1", 40812, "192.168.56.10", 30285)
REPLY = Endpoints("10.244.0.11", 8080, "10.244.0.1", 23711)
NESTED = 0x8000
ADDED, CHANGED, REMOVED = (
    (conntrack_events.MSG_NEW, conntrack_events.F_CREATE),
    (conntrack_events.MSG_NEW, 0),
    (conntrack_events.MSG_DELETE, 0),
)
"""Kind and flags of a message: a new entry, a changed one, a removed one."""


def attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(value), kind) + value + b"\0" * (-len(value) % 4)


def tuple_of(ends: Endpoints, protocol: int) -> bytes:
    family = socket.AF_INET6 if ":" in ends.src else socket.AF_INET
    first = 3 if family == socket.AF_INET6 else 1
    ip = attribute(first, socket.inet_pton(family, ends.src)) + attribute(first + 1, socket.inet_pton(family, ends.dst))
    proto = (
        attribute(1, bytes([protocol]))
        + attribute(2, struct.pack(">H", ends.sport))
        + attribute(3, struct.pack(">H", ends.dport))
    )
    return attribute(1 | NESTED, ip) + attribute(2 | NESTED, proto)


def message(
    kind: int, flags: int = 0, port: int = 0, protocol: int = 6, state: int = 1, orig: Endpoints = ORIG, zone: int = 7
) -> bytes:
    """One message. port: netlink port of the process that removed the entry."""
    body = struct.pack("=BBH", 2, 0, 0)
    body += attribute(1 | NESTED, tuple_of(orig, protocol)) + attribute(2 | NESTED, tuple_of(REPLY, protocol))
    body += attribute(3, struct.pack(">I", 8 | 4)) + attribute(18, struct.pack(">H", zone))
    if kind == conntrack_events.MSG_NEW:
        body += attribute(7, struct.pack(">I", 120))
    if protocol == 6:
        body += attribute(4 | NESTED, attribute(1 | NESTED, attribute(1, bytes([state]))))
    return struct.pack("=IHHII", 16 + len(body), 1 << 8 | kind, flags, 0, port) + body


class FakeConntrack:
    """A listener that has received these datagrams, all at once. names: process by netlink port."""

    def __init__(self, *datagrams: Datagram, why: str = "", names: dict[int, str] | None = None) -> None:
        self.waiting, self.lost, self._why, self._names = list(datagrams), 0, why, names or {}
        self.listens = False

    def listen(self, wanted: bool) -> str:
        self.listens = wanted
        return self._why

    def read(self) -> list[Datagram]:
        found, self.waiting = self.waiting, []
        return found

    def process(self, port: int) -> str:
        return self._names.get(port, "")

    def close(self) -> None: ...
