# SPDX-License-Identifier: Apache-2.0
"""Traffic of this node's pod `shop` and of the client: TCP requests and UDP datagrams, with a count of what was answered."""

from __future__ import annotations

import socket
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field

from cluster_scene import plan as names
from cluster_scene.plan import ClusterPlan, NodePlan
from scenes import traffic
from scenes.netns import entered

PATIENCE_SECONDS = 60.0
"""Limit for one request on a wire that loses packets, s."""
SILENCE_SECONDS = 1.0
"""Time without an answer after which those of UDP are complete, s."""
PAUSE_SECONDS = 0.004
"""Pause after a datagram, s: no queue of an emulated machine shall be full."""


@dataclass
class TrafficCount:
    """What was sent and answered. by: answers of each pod."""

    sent: int = 0
    answered: int = 0
    by: Counter[str] = field(default_factory=Counter)


def tcp(count: int, address: str, port: int, ns: str | None, seconds: float = PATIENCE_SECONDS) -> TrafficCount:
    """HTTP requests, one after the other. seconds: limit for one of them."""
    found = TrafficCount()
    for _ in range(count):
        reply = traffic.http_get(address, port, ns=ns, timeout=seconds)
        found.sent += 1
        if reply.outcome == "answered":
            found.answered += 1
            found.by[reply.server] += 1
    return found


def udp(count: int, address: str, port: int, ns: str) -> TrafficCount:
    """Datagrams with a number in each, from one socket for ten of them; answers are counted, and not waited for."""
    found = TrafficCount()
    with entered(ns):
        socks = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(-(-count // 10))]
    for number in range(count):
        socks[number // 10].sendto(f"datagram {number:06d}".encode(), (address, port))
        found.sent += 1
        time.sleep(PAUSE_SECONDS)
    until = time.monotonic() + SILENCE_SECONDS
    while time.monotonic() < until:
        for sock in socks:
            try:
                answer = sock.recv(2048, socket.MSG_DONTWAIT)
            except BlockingIOError:
                continue
            found.answered += 1
            found.by[answer.decode().partition(" ")[0]] += 1
            until = time.monotonic() + SILENCE_SECONDS
        time.sleep(0.01)
    for sock in socks:
        sock.close()
    return found


def upload(size: int, address: str, port: int, ns: str | None, seconds: float) -> TrafficCount:
    """One request of so many bytes; it is answered when its first bytes have come. seconds: limit for its answer."""
    found = TrafficCount(sent=1)
    with entered(ns):
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    sock.settimeout(seconds)
    with sock, suppress(OSError):
        sock.connect((address, port))
        sock.sendall(b"x" * size)
        # The server may close with a reset, because it has not read all: what it answered counts.
        if answer := sock.recv(4096):
            found.answered = 1
            found.by[answer.rpartition(b"\r\n\r\n")[2].decode(errors="replace").partition(" ")[0]] += 1
    return found


def single_datagrams(count: int, size: int, address: str, port: int, ns: str | None, seconds: float) -> TrafficCount:
    """Datagrams of so many bytes, each from a port of its own, so that no two are alike. seconds: limit for an answer."""
    found = TrafficCount()
    for number in range(count):
        with entered(ns):
            sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        with sock, suppress(OSError):
            sock.settimeout(seconds)
            sock.connect((address, port))
            found.sent += 1
            sock.send(f"datagram {number:06d} ".encode().ljust(size, b"x"))
            found.by[sock.recv(4096).decode().partition(" ")[0]] += 1
            found.answered += 1
    return found


def all_kinds(plan: ClusterPlan, node: NodePlan, requests: int, datagrams: int) -> dict[str, TrafficCount]:
    """Through each kind of address: ClusterIP, NodePort (from outside), another node's pod."""
    cart, stock, _ = plan.services(node)
    shop = node.pod("shop").name
    other = next(each for each in plan.nodes if each is not node)
    found = {
        "tcp ClusterIP": tcp(requests, cart.address, cart.port, shop),
        "udp ClusterIP": udp(datagrams, stock.address, stock.port, shop),
        "udp pod": udp(datagrams, other.pod("cart").address, names.UDP_PORT, shop),
    }
    if node.number == 1:
        found["tcp NodePort"] = tcp(requests, names.OUTSIDE4, cart.node_port, names.CLIENT)
    return found
