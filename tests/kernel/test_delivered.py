# SPDX-License-Identifier: Apache-2.0
"""A packet that a socket has taken and discarded unread was delivered, not dropped. Each way to discard it is tested."""

from __future__ import annotations

import fcntl
import os
import socket
import stat
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
from tracer.model.filter import Filter
from tracer.model.hop import DropHop
from tracer.model.packet import Packet
from tracer.packets import purged
from tracer.packets.outcome import BAD

POD4, POD6 = topology.PODS[0].addr4, topology.PODS[0].addr6
PORT, CLOSED, RAW_PROTOCOL = 9601, 9602, 253
IP_RECVERR, TUNSETIFF, IFF_TUN, IFF_TAP, IFF_NO_PI = 11, 0x400454CA, 1, 2, 0x1000
TCP_REPAIR, TCP_REPAIR_QUEUE, TCP_QUEUE_SEQ, RECEIVE, SEND, NO_PROBE = 19, 20, 21, 1, 2, -1
SCTP, PSH_ACK = 132, 0x18
AFTER_IDLE_SECONDS = 0.4
"""Longer than the idle timeout of a packet, s."""


def open_socket(family: int, kind: int, protocol: int = 0, ns: str | None = "pod-a") -> socket.socket:
    with entered(ns):
        return socket.socket(family, kind, protocol)


def datagram(to: str, port: int) -> None:
    with open_socket(socket.AF_INET6 if ":" in to else socket.AF_INET, socket.SOCK_DGRAM, ns="client") as sock:
        sock.sendto(b"unread", (to, port))


def udp(to: str) -> socket.socket:
    """A socket with an unread datagram."""
    sock = open_socket(socket.AF_INET6 if ":" in to else socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind((to, PORT))
    datagram(to, PORT)
    return sock


def with_an_error() -> socket.socket:
    """A socket with an ICMP error in its error queue."""
    sock = open_socket(socket.AF_INET, socket.SOCK_DGRAM, ns="client")
    sock.setsockopt(socket.IPPROTO_IP, IP_RECVERR, 1)
    sock.sendto(b"nobody", (POD4, CLOSED))
    return sock


def raw() -> socket.socket:
    sock = open_socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_UDP)
    datagram(POD4, CLOSED)
    return sock


def raw_protocol() -> socket.socket:
    """A socket with an unread packet of a protocol that only raw sockets take."""
    sock = open_socket(socket.AF_INET, socket.SOCK_RAW, RAW_PROTOCOL)
    with open_socket(socket.AF_INET, socket.SOCK_RAW, RAW_PROTOCOL, "client") as sender:
        sender.sendto(b"unread", (POD4, 0))
    return sock


def ping() -> socket.socket:
    """A socket with an unread echo reply."""
    with entered("client"), open("/proc/sys/net/ipv4/ping_group_range", "w") as file:
        file.write("0 65535")
    sock = open_socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP, "client")
    sock.sendto(struct.pack("!BBHHH", 8, 0, 0, 1, 1) + b"unread", (POD4, 0))
    return sock


@contextmanager
def connected() -> Iterator[tuple[socket.socket, socket.socket]]:
    """The listener and the client of a connection that has not been accepted yet."""
    with (
        open_socket(socket.AF_INET, socket.SOCK_STREAM) as listener,
        open_socket(socket.AF_INET, socket.SOCK_STREAM, ns="client") as client,
    ):
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((POD4, PORT))
        listener.listen(4)
        client.connect((POD4, PORT))
        yield listener, client


@contextmanager
def tcp(accepted: bool) -> Iterator[Callable[[], None]]:
    """A connection with an unread segment. Yields the function that ends it on the listener's side."""
    with connected() as (listener, client):
        client.send(b"unread")
        time.sleep(0.1)
        yield listener.accept()[0].close if accepted else listener.close


def segment(client: socket.socket, ahead: int) -> None:
    """Sends one more segment of a connection, `ahead` bytes after the next expected one."""
    numbers = []
    client.setsockopt(socket.IPPROTO_TCP, TCP_REPAIR, 1)
    for queue in (SEND, RECEIVE):
        client.setsockopt(socket.IPPROTO_TCP, TCP_REPAIR_QUEUE, queue)
        numbers.append(client.getsockopt(socket.IPPROTO_TCP, TCP_QUEUE_SEQ) & 0xFFFFFFFF)
    client.setsockopt(socket.IPPROTO_TCP, TCP_REPAIR, NO_PROBE)
    (src, sport), (dst, dport), body = client.getsockname(), client.getpeername(), b"behind"
    head = [sport, dport, (numbers[0] + ahead) & 0xFFFFFFFF, numbers[1], 5 << 4, PSH_ACK, 512, 0, 0]
    pseudo = socket.inet_aton(src) + socket.inet_aton(dst) + struct.pack("!HH", socket.IPPROTO_TCP, 20 + len(body))
    words = struct.unpack("!19H", pseudo + struct.pack("!HHIIBBHHH", *head) + body)
    folded = sum(words) % 0xFFFF
    head[7] = ~folded & 0xFFFF
    with open_socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_TCP, "client") as sender:
        sender.sendto(struct.pack("!HHIIBBHHH", *head) + body, (dst, 0))


@contextmanager
def tcp_gap() -> Iterator[Callable[[], None]]:
    """A connection with a segment that waits for the one before it. Yields the function that discards both."""
    with connected() as (listener, client), listener.accept()[0] as accepted:
        segment(client, 1000)
        time.sleep(0.1)
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        yield accepted.close


@contextmanager
def sctp() -> Iterator[Callable[[], None]]:
    """An SCTP association with an unread message."""
    modules.load("sctp")
    with open_socket(socket.AF_INET, socket.SOCK_STREAM, SCTP) as listener, ExitStack() as stack:
        listener.bind((POD4, PORT))
        listener.listen(4)
        client = stack.enter_context(open_socket(socket.AF_INET, socket.SOCK_STREAM, SCTP, "client"))
        client.connect((POD4, PORT))
        accepted = stack.enter_context(listener.accept()[0])
        client.send(b"unread")
        time.sleep(0.1)
        yield accepted.close


def ip(*lines: str, ns: str = "client") -> None:
    for words in lines:
        subprocess.run(["ip", *(("-n", ns) if ns else ()), *words.split()], check=True)


@contextmanager
def tun(kind: int = IFF_TUN) -> Iterator[Callable[[], None]]:
    """A tunnel with a packet in its queue that its process does not read."""
    modules.load("tun")
    with entered("client"):
        fd = os.open("/dev/net/tun", os.O_RDWR)
        fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH22x", b"tun7", kind | IFF_NO_PI))
    ip("addr add 10.99.0.1/24 dev tun7", "link set tun7 up")
    if kind == IFF_TAP:
        ip("neigh add 10.99.0.2 lladdr 02:00:00:00:00:02 dev tun7")
    datagram("10.99.0.2", PORT)
    yield lambda: os.close(fd)


@contextmanager
def macvtap() -> Iterator[Callable[[], None]]:
    """A device with a packet that its process does not read."""
    modules.load("macvtap")
    ip("link add link eth0 name mv7 address 02:00:00:00:00:07 type macvtap mode bridge", "link set mv7 up")
    device = subprocess.run(
        ["ip", "netns", "exec", "client", "sh", "-c", "cat /sys/class/net/mv7/macvtap/tap*/dev"],
        check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    node = f"/run/k8snet-tap-{os.getpid()}"
    os.mknod(node, 0o600 | stat.S_IFCHR, os.makedev(*map(int, device.split(":"))))
    fd = os.open(node, os.O_RDWR)
    os.unlink(node)
    uplink = subprocess.run(
        ["ip", "-o", "-4", "addr", "show", "to", topology.NODE4], check=True, capture_output=True, text=True
    ).stdout.split()[1]  # fmt: skip
    try:
        ip(f"route add 10.97.0.2/32 dev {uplink}", f"neigh add 10.97.0.2 lladdr 02:00:00:00:00:07 dev {uplink}", ns="")
        with open_socket(socket.AF_INET, socket.SOCK_DGRAM, ns=None) as sender:
            sender.sendto(b"unread", ("10.97.0.2", PORT))
        time.sleep(0.1)
        yield lambda: os.close(fd)
    finally:
        ip(f"neigh del 10.97.0.2 dev {uplink}", f"route del 10.97.0.2/32 dev {uplink}", ns="")
        ip("link del mv7")


def frees(found: list[Packet]) -> list[tuple[str, str, str, str, bool]]:
    return [
        (p.protocol, p.verdict, h.drop.function, h.drop.reason, h.clone)
        for p in found
        for h in p.hops
        if isinstance(h, DropHop)
    ]


WAYS = (
    "udp", "udp6", "error", "raw", "raw_protocol", "ping", "tcp", "tcp_backlog", "tcp_gap", "sctp", "tun", "tap", "macvtap",
    "packet",
)  # fmt: skip
QUICK = {("udp", "whole"), ("udp", "end"), ("error", "end"), ("tcp_backlog", "whole")}
CASES = [
    pytest.param(how, seen, marks=[pytest.mark.matrix] if (how, seen) in QUICK else [pytest.mark.thorough])
    for how in WAYS
    for seen in ("whole", "late", "end")
]


@pytest.mark.parametrize(("how", "seen"), CASES)
def test_delivered(watch: Watch, how: str, seen: str) -> None:
    """seen: the packet as a whole; its end after the idle timeout; its end alone."""
    with ExitStack() as stack:
        if seen == "end":
            close = left_unread(how, stack)
            time.sleep(AFTER_IDLE_SECONDS)
        packet_filter = Filter(hosts=()) if how in ("raw_protocol", "ping", "error") else Filter(ports=(PORT, CLOSED))
        with watch(packet_filter) as trace:
            if seen != "end":
                close = left_unread(how, stack)
                if seen == "late":
                    time.sleep(AFTER_IDLE_SECONDS)
            close()
    print(*frees(trace.packets), *((p.protocol, p.tcp_flags, p.netns, p.verdict) for p in trace.packets), sep="\n")
    emptied = [p for p in trace.packets for h in p.hops if isinstance(h, DropHop) and h.drop.function in purged.QUEUE_OWNERS]
    assert emptied or how == "tcp", "TCP frees unread data of a closed socket without a tracepoint"
    assert not [p.verdict for p in emptied if p.outcome in BAD and p.drop and p.drop.function in purged.QUEUE_OWNERS]


@contextmanager
def delayed() -> Iterator[Callable[[], None]]:
    """A packet in the queue of a device that sends it much later. Yields the function that removes the device."""
    modules.load("sch_netem")
    ip("link add q7 type veth peer name q8", "link set q8 up", "link set q7 up", "addr add 10.96.0.1/24 dev q7",
       "neigh add 10.96.0.2 lladdr 02:00:00:00:00:02 dev q7")  # fmt: skip
    subprocess.run(["tc", "-n", "client", "qdisc", "add", "dev", "q7", "root", "netem", "delay", "100s"], check=True)
    datagram("10.96.0.2", PORT)
    yield lambda: ip("link del q7")


@pytest.mark.thorough
@pytest.mark.parametrize("seen", ["whole", "late", "end"])
def test_packets_queued_in_a_removed_device_are_dropped(watch: Watch, seen: str) -> None:
    """No receiver had taken the packet, so it was dropped."""
    with ExitStack() as stack:
        close = stack.enter_context(delayed()) if seen == "end" else None
        time.sleep(AFTER_IDLE_SECONDS if close else 0)
        with watch(Filter(ports=(PORT,))) as trace:
            if not close:
                close = stack.enter_context(delayed())
                time.sleep(AFTER_IDLE_SECONDS if seen == "late" else 0)
            close()
    print(*frees(trace.packets), sep="\n")
    ends = [p for p in trace.packets if p.drop]
    assert len(ends) == 1 and ends[0].outcome == "dropped" and ends[0].drop and not purged.receiver(ends[0].drop)


def left_unread(how: str, stack: ExitStack) -> Callable[[], None]:
    """Leaves something unread; returns the function that discards it."""
    if how in ("tcp", "tcp_backlog"):
        return stack.enter_context(tcp(how == "tcp"))
    devices = {"tcp_gap": tcp_gap, "sctp": sctp, "tun": tun, "tap": lambda: tun(IFF_TAP), "macvtap": macvtap}
    if how in devices:
        return stack.enter_context(devices[how]())
    if how == "packet":
        sock = open_socket(socket.AF_PACKET, socket.SOCK_DGRAM, 0x0008)  # ETH_P_IP
        datagram(POD4, PORT)
        return sock.close
    makers = {"udp": lambda: udp(POD4), "udp6": lambda: udp(POD6), "error": with_an_error, "raw": raw,
              "raw_protocol": raw_protocol, "ping": ping}  # fmt: skip
    return makers[how]().close
