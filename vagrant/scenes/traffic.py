# SPDX-License-Identifier: Apache-2.0
"""Single requests from the client (or the node, or a pod), each with its outcome and its source port.

`ns` is the namespace of the request: "client" by default, None for the node itself. No process is started.
"""

from __future__ import annotations

import errno
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from scenes.netns import entered
from scenes.topology import CLIENT, NODE4

NODEPORT_HTTP, NODEPORT_LONELY, NODEPORT_UDP = 30285, 30584, 30053
CLUSTER_IP_HTTP = "172.30.253.123"

Outcome = Literal["answered", "connected", "refused", "timeout", "reset", "unreachable"]
_OUTCOMES: dict[int | None, Outcome] = {
    errno.ECONNREFUSED: "refused",
    errno.ETIMEDOUT: "timeout",
    errno.ECONNRESET: "reset",
    errno.EHOSTUNREACH: "unreachable",
    errno.ENETUNREACH: "unreachable",
    errno.EACCES: "unreachable",
    errno.EPERM: "unreachable",
}


@dataclass(frozen=True)
class Reply:
    """The outcome of one request. body: the answer's text, "" without one. sport: the client's port.

    seconds: from the first packet to the outcome. An ICMP port unreachable and a TCP reset to the SYN are both "refused": the
    socket interface does not distinguish them. Over IPv6 the ICMP answer to the first SYN comes while connect() still holds the
    socket, and is lost (TcpExtLockDroppedIcmps): it takes 2 SYNs, 1 s.
    """

    outcome: Outcome
    body: str
    sport: int
    seconds: float

    @property
    def server(self) -> str:
        """The server that answered ("pod-a"), "" without an answer."""
        return self.body.partition(" from ")[0]

    @property
    def seen_source(self) -> str:
        """The source address that arrived at the server, without its port, "" without an answer."""
        fields = self.body.partition(" from ")[2].split()
        return fields[0].rpartition(":")[0].strip("[]") if fields else ""


def http_get(
    addr: str = NODE4,
    port: int = NODEPORT_HTTP,
    *,
    ns: str | None = CLIENT,
    timeout: float = 10.0,
    sport: int = 0,
) -> Reply:
    """GET / from addr:port; `timeout` seconds for the connection, and the same for the answer."""
    return _ask(socket.SOCK_STREAM, addr, port, ns, timeout, sport, f"GET / HTTP/1.1\r\nHost: {addr}\r\n\r\n".encode())


def tcp_connect(addr: str, port: int, *, ns: str | None = CLIENT, timeout: float = 10.0, sport: int = 0) -> Reply:
    """Connect and close at once. Outcome: "connected", or the reason of the failure."""
    return _ask(socket.SOCK_STREAM, addr, port, ns, timeout, sport, None)


def udp_ask(
    addr: str = NODE4,
    port: int = NODEPORT_UDP,
    question: bytes = b"?",
    *,
    ns: str | None = CLIENT,
    timeout: float = 10.0,
    sport: int = 0,
) -> Reply:
    """Send one datagram and wait for an answer."""
    return _ask(socket.SOCK_DGRAM, addr, port, ns, timeout, sport, question)


@contextmanager
def connections(
    addr: str, port: int, count: int, *, ns: str | None = CLIENT, timeout: float = 10.0
) -> Iterator[list[socket.socket]]:
    """`count` TCP connections that stay open within the block. OSError if one cannot be made."""
    socks: list[socket.socket] = []
    try:
        for _ in range(count):
            socks.append(sock := _socket(socket.SOCK_STREAM, addr, ns, timeout, 0))
            sock.connect((addr, port))
        yield socks
    finally:
        for sock in socks:
            sock.close()


def _socket(kind: socket.SocketKind, addr: str, ns: str | None, timeout: float, sport: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in addr else socket.AF_INET
    with entered(ns):
        sock = socket.socket(family, kind)
    sock.settimeout(timeout)
    if sport:
        if kind == socket.SOCK_STREAM:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(("", sport))
    return sock


def _ask(
    kind: socket.SocketKind,
    addr: str,
    port: int,
    ns: str | None,
    timeout: float,
    sport: int,
    question: bytes | None,
) -> Reply:
    """Connect; if there is a question, send it and read the answer (TCP: to the end)."""
    outcome: Outcome
    body = b""
    with _socket(kind, addr, ns, timeout, sport) as sock:
        began = time.monotonic()
        try:
            sock.connect((addr, port))
            outcome = "connected"
            if question is not None:
                sock.sendall(question)
                body = sock.recv(65536)
                while kind == socket.SOCK_STREAM and (piece := sock.recv(65536)):
                    body += piece
                outcome = "answered"
        except OSError as err:
            known = "timeout" if isinstance(err, TimeoutError) else _OUTCOMES.get(err.errno)
            if known is None:
                raise
            outcome = known
        seconds = time.monotonic() - began
        own = sock.getsockname()[1]
    return Reply(outcome, body.rpartition(b"\r\n\r\n")[2].decode(errors="replace").strip(), own, seconds)
