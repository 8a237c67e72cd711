# SPDX-License-Identifier: Apache-2.0
"""Receives netlink events of conntrack entries (created, changed, removed) in this program's own namespace.

Listening changes no rule and no setting, and loads no module: binding to these groups would load nf_conntrack_netlink, so it is
only done where that is loaded already (kube-proxy and every conntrack tool load it). With nf_conntrack_events at its default,
the kernel sends events only for entries that were created while a listener existed. The time of an event is the time when it
was read, not the time when it happened.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tracer.events.record import PROTOCOLS
from tracer.model.connection import ConnectionKey
from tracer.model.endpoints import Endpoints
from tracer.model.namespace_name import Netns
from tracer.node.nfnetlink import attributes, number
from tracer.util.bounded_queue import BoundedQueue
from tracer.util.lru_dict import LruDict
from tracer.util.worker import Worker

NETLINK_NETFILTER, SOL_NETLINK, ADD_MEMBERSHIP = 12, 270, 1
GROUPS = {"new": 1, "update": 2, "destroy": 3}
MODULE = Path("/sys/module/nf_conntrack_netlink")
CTNETLINK, MSG_NEW, MSG_DELETE = 1, 0, 2
F_CREATE = 0x400
CTA_TUPLE_ORIG, CTA_TUPLE_REPLY, CTA_STATUS, CTA_PROTOINFO, CTA_TIMEOUT, CTA_ZONE = 1, 2, 3, 4, 7, 18
CTA_TUPLE_IP, CTA_TUPLE_PROTO = 1, 2
CTA_PROTOINFO_TCP, CTA_PROTOINFO_TCP_STATE = 1, 1
MAX_NUMBER_BYTES = 8
MAX_EVENTS = 20_000
"""Datagrams, and timeouts of entries, that are kept; the oldest are dropped."""
RECEIVE_BYTES = 4 << 20
"""Size of the socket's receive buffer, bytes."""
TCP_STATES = (
    "",
    "SYN_SENT",
    "SYN_RECV",
    "ESTABLISHED",
    "FIN_WAIT",
    "CLOSE_WAIT",
    "LAST_ACK",
    "TIME_WAIT",
    "CLOSE",
    "SYN_SENT2",
)
STATUS_ASSURED = 4


@dataclass(frozen=True)
class EntryEvent:
    """One event of a conntrack entry.

    Attributes:
        time: ns, CLOCK_MONOTONIC, when the event was read.
        what: "created", "changed" or "removed".
        key: the connection. A protocol without a name has its number.
        reply: the reply tuple.
        state: TCP state; "" for other protocols.
        status: bits of the entry's status.
        timeout: remaining seconds; 0 = not in the event.
        by: netlink port of the program that removed the entry; 0 = the kernel.
    """

    time: int
    what: str
    key: ConnectionKey
    reply: Endpoints
    state: str = ""
    status: int = 0
    timeout: int = 0
    by: int = 0


def unavailable_reason(module: Path = MODULE) -> str:
    """Why conntrack events are not available here; "" when they are."""
    return "" if module.exists() else "conntrack events are not available: the module nf_conntrack_netlink is not loaded"


Datagram = tuple[int, bytes]
"""Time of reading (ns, CLOCK_MONOTONIC), and the netlink message."""


class ConntrackListener(Protocol):
    """Gives a run the events of conntrack. lost: how often events were lost for lack of space."""

    lost: int

    def listen(self, is_requested: bool) -> str:
        """Begins to listen, if `is_requested`. Returns why it is not possible, "" when it is."""

    def read(self) -> list[Datagram]:
        """The datagrams since the previous call."""

    def process(self, port: int) -> str:
        """The process that has a netlink port: "conntrack (pid 42)"."""

    def close(self) -> None: ...


class EntryEvents:
    """Receives events in a thread."""

    def __init__(self) -> None:
        self._received: BoundedQueue[Datagram] = BoundedQueue(MAX_EVENTS, "conntrack events")
        self.lost, self._is_closed = 0, False
        self._thread: Worker | None = None

    def listen(self, is_requested: bool) -> str:
        if not is_requested or self._thread:
            return ""
        reason = unavailable_reason()
        if not reason:
            try:
                self._open_socket()
            except OSError as e:
                reason = f"conntrack events are not available: {e.strerror}"
        return reason

    def _open_socket(self) -> None:
        self._sock = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, NETLINK_NETFILTER)
        self._sock.bind((0, 0))
        self._sock.setsockopt(socket.SOL_SOCKET, 33, RECEIVE_BYTES)  # SO_RCVBUFFORCE
        for group in GROUPS.values():
            self._sock.setsockopt(SOL_NETLINK, ADD_MEMBERSHIP, group)
        self._sock.settimeout(0.2)
        self._thread = Worker("conntrack events", self._work).start()

    def read(self) -> list[Datagram]:
        return self._received.read()

    def process(self, port: int) -> str:
        return _format_port_owner(port)

    def _work(self) -> bool:
        try:
            data = self._sock.recv(1 << 17)
        except TimeoutError:
            return not self._is_closed
        except OSError as e:
            if e.errno == errno.ENOBUFS:
                self.lost += 1
                return True
            if self._is_closed:
                return False
            raise
        self.lost += len(self._received) == MAX_EVENTS
        self._received.append((time.monotonic_ns(), data))
        return not self._is_closed

    def close(self) -> None:
        self._is_closed = True
        if self._thread:
            self._thread.join(1.0)
            self._sock.close()


def parse(data: bytes, now: int, netns: Netns) -> Iterator[EntryEvent]:
    """Yields the events of one netlink datagram.

    It does not use pyroute2: a busy node has thousands of events a second, and pyroute2's decoder takes twelve times as long
    (300 us an event).

    Args:
        data: the datagram.
        now: when it was received, ns, CLOCK_MONOTONIC.
        netns: name of the listener's namespace, which tracks these connections; the kernel does not send it.
    """
    for kind, flags, port, body in _messages(data):
        found = _event(attributes(body), kind, flags, port, now, netns)
        if found:
            yield found


def removing_ports(data: bytes) -> Iterator[int]:
    """The netlink ports that removed the entries of one datagram."""
    return (port for kind, _, port, _ in _messages(data) if kind == MSG_DELETE and port)


def _messages(data: bytes) -> Iterator[tuple[int, int, int, bytes]]:
    """Yields (kind, flags, port, attributes) of each conntrack message."""
    offset = 0
    while offset + 16 <= len(data):
        length, kind, flags, _, port = struct.unpack_from("=IHHII", data, offset)
        if length < 16:
            return
        if kind >> 8 == CTNETLINK and kind & 255 in (MSG_NEW, MSG_DELETE):
            yield kind & 255, flags, port, data[offset + 20 : offset + length]
        offset += (length + 3) & ~3


def _event(attrs: dict[int, bytes], kind: int, flags: int, port: int, now: int, netns: Netns) -> EntryEvent | None:
    orig, protocol = _tuple(attrs.get(CTA_TUPLE_ORIG, b""))
    reply, _ = _tuple(attrs.get(CTA_TUPLE_REPLY, b""))
    if not orig or not reply or not _are_numbers({k: attrs.get(k, b"") for k in (CTA_ZONE, CTA_STATUS, CTA_TIMEOUT)}):
        return None
    tcp = attributes(attributes(attrs.get(CTA_PROTOINFO, b"")).get(CTA_PROTOINFO_TCP, b""))
    state = number(tcp.get(CTA_PROTOINFO_TCP_STATE, b"")[:1])
    return EntryEvent(
        now,
        "removed" if kind == MSG_DELETE else "created" if flags & F_CREATE else "changed",
        ConnectionKey(PROTOCOLS.get(protocol, str(protocol)), orig, number(attrs.get(CTA_ZONE)), netns),
        reply,
        TCP_STATES[state] if state < len(TCP_STATES) else "",
        number(attrs.get(CTA_STATUS)),
        number(attrs.get(CTA_TIMEOUT)),
        port,
    )


def _are_numbers(attrs: dict[int, bytes]) -> bool:
    """Whether these attributes are short enough for numbers. In a capture they may have any length."""
    return all(len(raw) <= MAX_NUMBER_BYTES for raw in attrs.values())


def _tuple(raw: bytes) -> tuple[Endpoints | None, int]:
    """The endpoints of a tuple, and its protocol. IPv4 addresses are attributes 1 and 2, IPv6 addresses 3 and 4."""
    parts = attributes(raw)
    ip, proto = attributes(parts.get(CTA_TUPLE_IP, b"")), attributes(parts.get(CTA_TUPLE_PROTO, b""))
    src, dst = ip.get(1) or ip.get(3), ip.get(2) or ip.get(4)
    if not src or not dst or len(src) != len(dst) or len(src) not in (4, 16) or not _are_numbers(proto):
        return None, 0
    family = socket.AF_INET if len(src) == 4 else socket.AF_INET6
    ends = Endpoints(socket.inet_ntop(family, src), number(proto.get(2)), socket.inet_ntop(family, dst), number(proto.get(3)))
    return ends, number(proto.get(1))


class EntryExpiry:
    """Keeps the last timeout of each entry, to distinguish entries that expired from entries that were removed earlier."""

    def __init__(self) -> None:
        self._expires: LruDict[ConnectionKey, int] = LruDict(MAX_EVENTS, "timeouts of conntrack entries")

    def format(self, event: EntryEvent, process: Callable[[int], str] | None = None) -> str:
        """One phrase for an event: "created, SYN_SENT, 120 s". process: names the process that has a netlink port."""
        key = event.key
        if event.what != "removed":
            if event.timeout:
                self._expires[key] = event.time + event.timeout * 1_000_000_000
            assured = " assured" if event.status & STATUS_ASSURED else ""
            parts = (event.what + assured, event.state, f"{event.timeout} s" if event.timeout else "")
            return ", ".join(part for part in parts if part)
        expires = self._expires.pop(key, 0)
        if event.by:
            return f"removed by {(process or _format_port_owner)(event.by)}"
        if expires and event.time < expires - 2_000_000_000:
            left = (expires - event.time) // 1_000_000_000
            reset = "ended by a reset, " if key.protocol == "TCP" else ""
            return f"removed {left} s before its timeout (derived): {reset}evicted from a full table, or flushed"
        return "expired" if expires else "removed"


def _format_port_owner(port: int) -> str:
    """The process that has a netlink port. The port is usually the process's number."""
    try:
        return f"{Path(f'/proc/{port}/comm').read_text(encoding='utf-8', errors='replace').strip()} (pid {port})"
    except OSError:
        return f"netlink port {port}" if port != os.getpid() else "this process"
