# SPDX-License-Identifier: Apache-2.0
"""The servers in the pods (and on the node): one forked process per namespace, no process per request.

HTTP on TCP answers one line `pod-a from 192.168.56.1:40812` ([ADDRESS]:PORT over IPv6): the name of the endpoint, and the
source address that arrived there. UDP answers the same line, then a space and the question. Both listen on IPv4 and IPv6.
"""

from __future__ import annotations

import selectors
import signal
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from threading import Thread

from scenes.mmsg import Batch
from scenes.netns import Child, entered
from scenes.topology import PODS, STATE_DIR

HTTP_PORT, UDP_PORT = 8080, 5353
_SO_RCVBUFFORCE = 33


@dataclass(frozen=True)
class Server:
    """One server process.

    ns: namespace (None = the node). name: start of its answers. http, udp: ports, None for none.
    accept: False = never accepts; after backlog + 1 connections each further SYN is dropped.
    sink: read UDP datagrams as fast as possible, without answers (for floods).
    """

    ns: str | None
    name: str
    http: int | None = HTTP_PORT
    udp: int | None = UDP_PORT
    accept: bool = True
    backlog: int = 128
    sink: bool = False


POD_SERVERS = tuple(Server(pod.name, pod.name) for pod in PODS)


def pod_servers(*, accept: bool = True, backlog: int = 128, sink: bool = False) -> list[Server]:
    """The three pods' servers, all with these settings."""
    return [replace(s, accept=accept, backlog=backlog, sink=sink) for s in POD_SERVERS]


def start(servers: Sequence[Server] = POD_SERVERS) -> list[Child[None]]:
    """Start the servers; every port answers when this returns. They continue after the caller ends, until they are killed.

    The sockets are made here, in the server's namespace, and then passed to a child: no wait is needed, and a port in use or a
    missing namespace is an OSError of this call.
    """
    STATE_DIR.mkdir(parents=True, exist_ok=True)
    children: list[Child[None]] = []
    try:
        for server in servers:
            children.append(_start_one(server))
    except BaseException:
        stop(children)
        raise
    return children


def stop(children: Sequence[Child[None]]) -> None:
    """End the servers that start() returned."""
    for child in children:
        child.kill()
        for note in STATE_DIR.glob(f"{child.pid}-*.pid"):
            note.unlink()


@contextmanager
def running(servers: Sequence[Server] = POD_SERVERS) -> Iterator[None]:
    """Calls start() before the block and stop() after it."""
    children = start(servers)
    try:
        yield
    finally:
        stop(children)


def _start_one(server: Server) -> Child[None]:
    socks: list[socket.socket] = []
    tcp = udp = None
    try:
        with entered(server.ns):
            if server.http is not None:
                socks.append(tcp := _dual_stack(socket.SOCK_STREAM, server.http))
                tcp.listen(server.backlog)
            if server.udp is not None:
                socks.append(udp := _dual_stack(socket.SOCK_DGRAM, server.udp))
        child: Child[None] = Child(
            server.ns,
            partial(_serve, server, tcp, udp),
            comm=f"scene-{server.name}",
            log=STATE_DIR / f"{server.name}.log",
            keep=[s.fileno() for s in socks],
        )
    finally:
        for sock in socks:
            sock.close()
    (STATE_DIR / f"{child.pid}-{server.name}.pid").touch()
    return child


def _dual_stack(kind: socket.SocketKind, port: int) -> socket.socket:
    sock = socket.socket(socket.AF_INET6, kind)
    try:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        if kind == socket.SOCK_STREAM:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(("::", port))
    except OSError:
        sock.close()
        raise
    return sock


def _serve(server: Server, tcp: socket.socket | None, udp: socket.socket | None) -> None:
    """The child's loop, until it is killed."""
    selector = selectors.DefaultSelector()
    if tcp is not None and server.accept:
        tcp.setblocking(False)
        selector.register(tcp, selectors.EVENT_READ, partial(_accept, selector, tcp, server.name))
    if udp is not None and server.sink:
        Thread(target=_discard, args=(udp,), daemon=True).start()
    elif udp is not None:
        selector.register(udp, selectors.EVENT_READ, partial(_echo, udp, server.name))
    if not selector.get_map():
        signal.pause()
    while True:
        for key, _ in selector.select():
            try:
                key.data()
            except OSError as err:  # an error of one peer does not end the server
                print(f"{server.name}: {err}", flush=True)


def _accept(selector: selectors.BaseSelector, tcp: socket.socket, name: str) -> None:
    try:
        conn, peer = tcp.accept()
    except BlockingIOError:
        return  # the peer has already reset it
    conn.setblocking(False)
    selector.register(conn, selectors.EVENT_READ, partial(_answer, selector, conn, f"{name} from {_text(peer)}\n"))


def _answer(selector: selectors.BaseSelector, conn: socket.socket, line: str) -> None:
    """Called when a request has come (its text does not matter), or the peer has closed."""
    selector.unregister(conn)
    with conn:
        if conn.recv(4096):
            head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(line)}\r\nConnection: close\r\n\r\n"
            conn.send((head + line).encode())


def _echo(udp: socket.socket, name: str) -> None:
    question, peer = udp.recvfrom(2048)
    udp.sendto(f"{name} from {_text(peer)} ".encode() + question, peer)


def _discard(udp: socket.socket) -> None:
    """Read datagrams in batches, and discard them. A full receive buffer would cause drops that the test does not want."""
    udp.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, 16 << 20)
    batch = Batch(256, 2048)
    while True:
        batch.receive(udp.fileno())


def _text(peer: tuple[str, int, int, int]) -> str:
    """ADDRESS:PORT or [ADDRESS]:PORT."""
    addr, port = peer[:2]
    return f"{addr[7:]}:{port}" if addr.startswith("::ffff:") else f"[{addr}]:{port}"
