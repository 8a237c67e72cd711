# SPDX-License-Identifier: Apache-2.0
"""What a socket has taken and thrown away unread was delivered, not dropped: each way to throw it away, made for real."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest

from scenes import topology
from scenes.netns import entered
from tests.kernel import modules
from tests.kernel.watching import Watch
from tracer import freed
from tracer.filters import Filter
from tracer.model import Packet
from tracer.verdict import BAD

POD4, POD6 = topology.PODS[0].addr4, topology.PODS[0].addr6
PORT, NOBODY, RAW_PROTOCOL = 9601, 9602, 253
IP_RECVERR, TUNSETIFF, IFF_TUN, IFF_NO_PI = 11, 0x400454CA, 1, 0x1000
LATER = 0.4
"""Longer than a packet may be quiet before it is taken for over."""


def made(family: int, kind: int, protocol: int = 0, ns: str | None = "pod-a") -> socket.socket:
    with entered(ns):
        return socket.socket(family, kind, protocol)


def datagram(to: str, port: int) -> None:
    with made(socket.AF_INET6 if ":" in to else socket.AF_INET, socket.SOCK_DGRAM, ns="client") as sock:
        sock.sendto(b"unread", (to, port))


def udp(to: str) -> socket.socket:
    """A socket with a datagram in it that nobody reads."""
    sock = made(socket.AF_INET6 if ":" in to else socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind((to, PORT))
    datagram(to, PORT)
    return sock


def with_an_error() -> socket.socket:
    """A socket with an ICMP error in its error queue."""
    sock = made(socket.AF_INET, socket.SOCK_DGRAM, ns="client")
    sock.setsockopt(socket.IPPROTO_IP, IP_RECVERR, 1)
    sock.sendto(b"nobody", (POD4, NOBODY))
    return sock


def raw() -> socket.socket:
    sock = made(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_UDP)
    datagram(POD4, NOBODY)
    return sock


def raw_protocol() -> socket.socket:
    """A protocol that only a raw socket takes."""
    sock = made(socket.AF_INET, socket.SOCK_RAW, RAW_PROTOCOL)
    with made(socket.AF_INET, socket.SOCK_RAW, RAW_PROTOCOL, "client") as sender:
        sender.sendto(b"unread", (POD4, 0))
    return sock


def ping() -> socket.socket:
    """An echo reply that nobody reads."""
    with entered("client"), open("/proc/sys/net/ipv4/ping_group_range", "w") as file:
        file.write("0 65535")
    sock = made(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP, "client")
    sock.sendto(struct.pack("!BBHHH", 8, 0, 0, 1, 1) + b"unread", (POD4, 0))
    return sock


@contextmanager
def tcp(accepted: bool) -> Iterator[Callable[[], None]]:
    """A connection with a segment that nobody reads; gives what ends it on the listener's side."""
    with made(socket.AF_INET, socket.SOCK_STREAM) as listener, ExitStack() as stack:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((POD4, PORT))
        listener.listen(4)
        client = stack.enter_context(made(socket.AF_INET, socket.SOCK_STREAM, ns="client"))
        client.connect((POD4, PORT))
        client.send(b"unread")
        time.sleep(0.1)
        yield listener.accept()[0].close if accepted else listener.close


@contextmanager
def tun() -> Iterator[Callable[[], None]]:
    """A tunnel with a packet in its queue that its process does not read."""
    modules.load("tun")
    with entered("client"):
        fd = os.open("/dev/net/tun", os.O_RDWR)
        fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH22x", b"tun7", IFF_TUN | IFF_NO_PI))
        for words in ("addr add 10.99.0.1/24 dev tun7", "link set tun7 up"):
            subprocess.run(["ip", "-n", "client", *words.split()], check=True)
    datagram("10.99.0.2", PORT)
    yield lambda: os.close(fd)


def frees(found: list[Packet]) -> list[tuple[str, str, str, str, bool]]:
    return [(p.protocol, p.verdict, h.drop.function, h.drop.reason, h.clone) for p in found for h in p.hops if h.drop]


WAYS = ("udp", "udp6", "error", "raw", "raw_protocol", "ping", "tcp", "tcp_backlog", "tun", "packet")
QUICK = {("udp", "whole"), ("udp", "end"), ("error", "end"), ("tcp_backlog", "whole")}
CASES = [
    pytest.param(how, seen, marks=[pytest.mark.matrix] if (how, seen) in QUICK else [pytest.mark.thorough])
    for how in WAYS
    for seen in ("whole", "late", "end")
]


@pytest.mark.parametrize(("how", "seen"), CASES)
def test_delivered(watch: Watch, how: str, seen: str) -> None:
    """seen: the whole way in one; the end long after the rest; nothing but the end."""
    with ExitStack() as stack:
        if seen == "end":
            close = begun(how, stack)
            time.sleep(LATER)
        wanted = Filter(hosts=()) if how in ("raw_protocol", "ping", "error") else Filter(ports=(PORT, NOBODY))
        with watch(wanted) as told:
            if seen != "end":
                close = begun(how, stack)
                if seen == "late":
                    time.sleep(LATER)
            close()
    print(*frees(told.packets), *((p.protocol, p.tcp_flags, p.netns, p.verdict) for p in told.packets), sep="\n")
    emptied = [p for p in told.packets for h in p.hops if h.drop and h.drop.function in freed.EMPTIED]
    assert emptied or how == "tcp", "what a process closes unread, TCP frees without a word"
    assert not [p.verdict for p in emptied if p.outcome in BAD and p.drop and p.drop.function in freed.EMPTIED]


def begun(how: str, stack: ExitStack) -> Callable[[], None]:
    """What leaves something unread; gives what throws it away."""
    if how in ("tcp", "tcp_backlog"):
        return stack.enter_context(tcp(how == "tcp"))
    if how == "tun":
        return stack.enter_context(tun())
    if how == "packet":
        sock = made(socket.AF_PACKET, socket.SOCK_DGRAM, 0x0008)  # ETH_P_IP
        datagram(POD4, PORT)
        return sock.close
    makers = {"udp": lambda: udp(POD4), "udp6": lambda: udp(POD6), "error": with_an_error, "raw": raw,
              "raw_protocol": raw_protocol, "ping": ping}  # fmt: skip
    return makers[how]().close
