# SPDX-License-Identifier: Apache-2.0
"""Hears what conntrack does to its entries: created, changed, removed, by netlink's events of the node's own namespace.

Listening changes no rule and no setting, and loads nothing: binding to these groups would load nf_conntrack_netlink, so it is
only done where that is loaded (kube-proxy and every conntrack tool load it). With nf_conntrack_events at its default, entries
made while somebody listens are told of, older ones are not. The events say when they were read, not when it happened.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tracer.events.record import PROTOCOLS
from tracer.model.packet import Endpoints
from tracer.node.nfnetlink import attributes, number
from tracer.util.worker import Worker

NETLINK_NETFILTER, SOL_NETLINK, ADD_MEMBERSHIP = 12, 270, 1
GROUPS = {"new": 1, "update": 2, "destroy": 3}
MODULE = Path("/sys/module/nf_conntrack_netlink")
CTNETLINK, MSG_NEW, MSG_DELETE = 1, 0, 2
F_CREATE = 0x400
CTA_TUPLE_ORIG, CTA_TUPLE_REPLY, CTA_STATUS, CTA_PROTOINFO, CTA_TIMEOUT, CTA_ZONE = 1, 2, 3, 4, 7, 18
CTA_TUPLE_IP, CTA_TUPLE_PROTO = 1, 2
CTA_PROTOINFO_TCP, CTA_PROTOINFO_TCP_STATE = 1, 1
NUMBER_BYTES = 8
KEPT = 20_000
RECEIVE_BYTES = 4 << 20
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
ASSURED = 4


@dataclass(frozen=True)
class EntryEvent:
    """What became of a conntrack entry. time: ns, CLOCK_MONOTONIC, when it was read. what: "created", "changed", "removed".

    state: TCP's, "" for others. timeout: seconds that it has, 0 = not told. by: netlink port of who removed it, 0 = the kernel.
    """

    time: int
    what: str
    protocol: str
    orig: Endpoints
    reply: Endpoints
    zone: int = 0
    state: str = ""
    status: int = 0
    timeout: int = 0
    by: int = 0


def why_not(module: Path = MODULE) -> str:
    """Why there can be no events here; "" when there can."""
    return "" if module.exists() else "conntrack's events are not told: the module nf_conntrack_netlink is not loaded"


Datagram = tuple[int, bytes]
"""When it was read (ns, CLOCK_MONOTONIC), and what netlink said."""


class ConntrackListener(Protocol):
    """What a run hears of conntrack. lost: how often the kernel had no room for an event."""

    lost: int

    def listen(self, wanted: bool) -> str:
        """Begins, if this run tells it. Returns why that cannot be, "" when it can."""

    def read(self) -> list[Datagram]:
        """What has come since the last call."""

    def process(self, port: int) -> str:
        """Who has a netlink port: "conntrack (pid 42)"."""

    def close(self) -> None: ...


class EntryEvents:
    """A thread that listens."""

    def __init__(self) -> None:
        self._came: deque[Datagram] = deque(maxlen=KEPT)
        self.lost, self._ended = 0, False
        self._thread: Worker | None = None

    def listen(self, wanted: bool) -> str:
        if not wanted or self._thread:
            return ""
        why = why_not()
        if not why:
            try:
                self._begin()
            except OSError as e:
                why = f"conntrack's events are not told: {e.strerror}"
        return why

    def _begin(self) -> None:
        self._sock = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, NETLINK_NETFILTER)
        self._sock.bind((0, 0))
        self._sock.setsockopt(socket.SOL_SOCKET, 33, RECEIVE_BYTES)  # SO_RCVBUFFORCE
        for group in GROUPS.values():
            self._sock.setsockopt(SOL_NETLINK, ADD_MEMBERSHIP, group)
        self._sock.settimeout(0.2)
        self._thread = Worker("conntrack events", self._work).start()

    def read(self) -> list[Datagram]:
        return [self._came.popleft() for _ in range(len(self._came))]

    def process(self, port: int) -> str:
        return _process(port)

    def _work(self) -> bool:
        try:
            data = self._sock.recv(1 << 17)
        except TimeoutError:
            return not self._ended
        except OSError as e:
            if e.errno == errno.ENOBUFS:
                self.lost += 1
                return True
            if self._ended:
                return False
            raise
        self.lost += len(self._came) == KEPT
        self._came.append((time.monotonic_ns(), data))
        return not self._ended

    def close(self) -> None:
        self._ended = True
        if self._thread:
            self._thread.join(1.0)
            self._sock.close()


def parse(data: bytes, now: int) -> Iterator[EntryEvent]:
    """The events in one datagram of netlink. Taken apart here: a busy node has thousands a second, and pyroute2's decoder takes
    twelve times as long (300 us an event)."""
    for kind, flags, port, body in _messages(data):
        found = _event(attributes(body), kind, flags, port, now)
        if found:
            yield found


def removers(data: bytes) -> Iterator[int]:
    """The netlink ports that removed entries in one datagram."""
    return (port for kind, _, port, _ in _messages(data) if kind == MSG_DELETE and port)


def _messages(data: bytes) -> Iterator[tuple[int, int, int, bytes]]:
    """(kind, flags, port, attributes) of conntrack's messages."""
    at = 0
    while at + 16 <= len(data):
        length, kind, flags, _, port = struct.unpack_from("=IHHII", data, at)
        if length < 16:
            return
        if kind >> 8 == CTNETLINK and kind & 255 in (MSG_NEW, MSG_DELETE):
            yield kind & 255, flags, port, data[at + 20 : at + length]
        at += (length + 3) & ~3


def _event(attrs: dict[int, bytes], kind: int, flags: int, port: int, now: int) -> EntryEvent | None:
    orig, protocol = _tuple(attrs.get(CTA_TUPLE_ORIG, b""))
    reply, _ = _tuple(attrs.get(CTA_TUPLE_REPLY, b""))
    if not orig or not reply or not _is_short({k: attrs.get(k, b"") for k in (CTA_ZONE, CTA_STATUS, CTA_TIMEOUT)}):
        return None
    tcp = attributes(attributes(attrs.get(CTA_PROTOINFO, b"")).get(CTA_PROTOINFO_TCP, b""))
    state = number(tcp.get(CTA_PROTOINFO_TCP_STATE, b"")[:1])
    return EntryEvent(
        now,
        "removed" if kind == MSG_DELETE else "created" if flags & F_CREATE else "changed",
        PROTOCOLS.get(protocol, str(protocol)),
        orig,
        reply,
        number(attrs.get(CTA_ZONE)),
        TCP_STATES[state] if state < len(TCP_STATES) else "",
        number(attrs.get(CTA_STATUS)),
        number(attrs.get(CTA_TIMEOUT)),
        port,
    )


def _is_short(attrs: dict[int, bytes]) -> bool:
    """Whether these attributes can be numbers of the kernel's: a capture may hold any."""
    return all(len(raw) <= NUMBER_BYTES for raw in attrs.values())


def _tuple(raw: bytes) -> tuple[Endpoints | None, int]:
    """The ends of a tuple, and its protocol; IPv4 addresses are attributes 1 and 2, IPv6 addresses 3 and 4."""
    parts = attributes(raw)
    ip, proto = attributes(parts.get(CTA_TUPLE_IP, b"")), attributes(parts.get(CTA_TUPLE_PROTO, b""))
    src, dst = ip.get(1) or ip.get(3), ip.get(2) or ip.get(4)
    if not src or not dst or len(src) != len(dst) or len(src) not in (4, 16) or not _is_short(proto):
        return None, 0
    family = socket.AF_INET if len(src) == 4 else socket.AF_INET6
    ends = Endpoints(socket.inet_ntop(family, src), number(proto.get(2)), socket.inet_ntop(family, dst), number(proto.get(3)))
    return ends, number(proto.get(1))


class EntryExpiry:
    """Tells an entry that expired from one that was removed before its time: keeps each entry's last timeout."""

    def __init__(self, most: int = KEPT) -> None:
        self._until: dict[tuple[str, Endpoints, int], int] = {}
        self._most = most

    def format(self, event: EntryEvent, process: Callable[[int], str] | None = None) -> str:
        """One phrase for an event: "created, SYN_SENT, 120 s". process: tells who has a netlink port."""
        key = event.protocol, event.orig, event.zone
        if event.what != "removed":
            if event.timeout:
                self._until.pop(key, None)
                self._until[key] = event.time + event.timeout * 1_000_000_000
                if len(self._until) > self._most:
                    del self._until[next(iter(self._until))]
            assured = " assured" if event.status & ASSURED else ""
            known = (event.what + assured, event.state, f"{event.timeout} s" if event.timeout else "")
            return ", ".join(part for part in known if part)
        until = self._until.pop(key, 0)
        if event.by:
            return f"removed by {(process or _process)(event.by)}"
        if until and event.time < until - 2_000_000_000:
            left = (until - event.time) // 1_000_000_000
            reset = "ended by a reset, " if event.protocol == "TCP" else ""
            return f"removed {left} s before its time (derived): {reset}evicted for want of room, or flushed"
        return "expired" if until else "removed"


def _process(port: int) -> str:
    """Who has that netlink port; it is most often the process's number."""
    try:
        return f"{Path(f'/proc/{port}/comm').read_text(encoding='utf-8', errors='replace').strip()} (pid {port})"
    except OSError:
        return f"netlink port {port}" if port != os.getpid() else "this process"
