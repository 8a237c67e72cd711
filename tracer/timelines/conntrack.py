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
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tracer.model import Endpoints
from tracer.record import PROTOCOLS

NETLINK_NETFILTER, SOL_NETLINK, ADD_MEMBERSHIP = 12, 270, 1
GROUPS = {"new": 1, "update": 2, "destroy": 3}
MODULE = Path("/sys/module/nf_conntrack_netlink")
CTNETLINK, MSG_NEW, MSG_DELETE = 1, 0, 2
F_CREATE = 0x400
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
ASSURED, SEEN_REPLY = 4, 2


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


class EntryEvents:
    """A thread that listens; a context manager. lost: how often the kernel had no room for an event."""

    def __init__(self) -> None:
        self._sock = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, NETLINK_NETFILTER)
        self._sock.bind((0, 0))
        self._sock.setsockopt(socket.SOL_SOCKET, 33, RECEIVE_BYTES)  # SO_RCVBUFFORCE
        for group in GROUPS.values():
            self._sock.setsockopt(SOL_NETLINK, ADD_MEMBERSHIP, group)
        self._sock.settimeout(0.2)
        self._events: deque[EntryEvent] = deque(maxlen=KEPT)
        self.lost, self._ended = 0, False
        self._thread = threading.Thread(target=self._run, name="conntrack events", daemon=True)
        self._thread.start()

    def take(self) -> list[EntryEvent]:
        """What has come since the last call."""
        return [self._events.popleft() for _ in range(len(self._events))]

    def _run(self) -> None:
        while not self._ended:
            try:
                data = self._sock.recv(1 << 17)
            except TimeoutError:
                continue
            except OSError as e:
                if e.errno != errno.ENOBUFS:
                    return
                self.lost += 1
                continue
            if len(self._events) == KEPT:
                self.lost += 1
            self._events.extend(read(data, time.monotonic_ns()))

    def close(self) -> None:
        self._ended = True
        self._thread.join(1.0)
        self._sock.close()

    def __enter__(self) -> EntryEvents:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read(data: bytes, now: int) -> Iterator[EntryEvent]:
    """The events in one datagram of netlink."""
    from pyroute2.netlink.nfnetlink.nfctsocket import nfct_msg

    at = 0
    while at + 16 <= len(data):
        length, kind, flags, _, port = struct.unpack_from("=IHHII", data, at)
        if length < 16:
            return
        if kind >> 8 == CTNETLINK and kind & 255 in (MSG_NEW, MSG_DELETE):
            message = nfct_msg(data[at : at + length])
            message.decode()
            found = _event(message, kind & 255, flags, port, now)
            if found:
                yield found
        at += (length + 3) & ~3


def _event(message: Any, kind: int, flags: int, port: int, now: int) -> EntryEvent | None:
    orig, protocol = _tuple(message.get_attr("CTA_TUPLE_ORIG"))
    reply, _ = _tuple(message.get_attr("CTA_TUPLE_REPLY"))
    if not orig or not reply:
        return None
    info = message.get_attr("CTA_PROTOINFO")
    tcp = info.get_attr("CTA_PROTOINFO_TCP") if info else None
    state = tcp.get_attr("CTA_PROTOINFO_TCP_STATE") if tcp else None
    return EntryEvent(
        now,
        "removed" if kind == MSG_DELETE else "created" if flags & F_CREATE else "changed",
        PROTOCOLS.get(protocol, str(protocol)),
        orig,
        reply,
        message.get_attr("CTA_ZONE") or 0,
        TCP_STATES[state] if state is not None and state < len(TCP_STATES) else "",
        message.get_attr("CTA_STATUS") or 0,
        message.get_attr("CTA_TIMEOUT") or 0,
        port,
    )


def _tuple(attrs: Any) -> tuple[Endpoints | None, int]:
    if not attrs:
        return None, 0
    ip, proto = attrs.get_attr("CTA_TUPLE_IP"), attrs.get_attr("CTA_TUPLE_PROTO")
    if not ip or not proto:
        return None, 0
    src = ip.get_attr("CTA_IP_V4_SRC") or ip.get_attr("CTA_IP_V6_SRC")
    dst = ip.get_attr("CTA_IP_V4_DST") or ip.get_attr("CTA_IP_V6_DST")
    ports = (proto.get_attr(f"CTA_PROTO_{end}_PORT") or 0 for end in ("SRC", "DST"))
    sport, dport = ports
    return Endpoints(str(src), sport, str(dst), dport), int(proto.get_attr("CTA_PROTO_NUM") or 0)


class Ends:
    """Tells an entry that expired from one that was removed before its time: keeps each entry's last timeout."""

    def __init__(self, most: int = KEPT) -> None:
        self._until: dict[tuple[str, Endpoints, int], int] = {}
        self._most = most

    def words(self, event: EntryEvent) -> str:
        """One phrase for an event: "created, SYN_SENT, 120 s"."""
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
            return f"removed by {_process(event.by)}"
        if until and event.time < until - 2_000_000_000:
            left = (until - event.time) // 1_000_000_000
            return f"removed {left} s before its time (derived): evicted for want of room, or flushed"
        return "expired" if until else "removed"


def _process(port: int) -> str:
    """Who has that netlink port; it is most often the process's number."""
    try:
        return f"{Path(f'/proc/{port}/comm').read_text(encoding='utf-8').strip()} (pid {port})"
    except OSError:
        return f"netlink port {port}" if port != os.getpid() else "this process"
