# SPDX-License-Identifier: Apache-2.0
"""Makes each cause of a SYN's end on the small node, over IPv4 or IPv6.

A maker builds what it needs, sends SYNs to its port, and yields while the listener still exists; then it reverts its changes.
syn_scenes.py names the makers, with the cause that must be reported for each.
"""

from __future__ import annotations

import socket
import struct
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from socket import if_nametoindex

from scenes import nfnetlink, packets, servers, traffic
from scenes.netns import entered
from scenes.topology import CLIENT, PODS
from tests.kernel.sides import Side, also_rules, forwarded, shared_snat, sysctl

TCP_REPAIR, TCP_REPAIR_QUEUE, TCP_QUEUE_SEQ = 19, 20, 21
TCP_REPAIR_OFF_WITHOUT_PROBE, TCP_SEND_QUEUE = -1, 2
"""Of linux/tcp.h; Python has no names for them."""


def connect(address: str, port: int, count: int = 2, timeout: float = 0.6) -> None:
    for _ in range(count):
        traffic.tcp_connect(address, port, timeout=timeout)


def stamps(value: int) -> bytes:
    """A timestamp option, as Linux writes it in a SYN."""
    return struct.pack("!BBBBII", 1, 1, 8, 10, value, 0)


def flood(address: str, port: int, count: int, src: str) -> None:
    """Sends SYNs; their answers reach no client."""
    for n in range(count):
        packets.send_tcp(address, port, src=src, sport=20000 + n, flags=packets.SYN)
        time.sleep(0.02)


def accepted(to: Side, port: int) -> Iterator[None]:
    for _ in range(3):
        traffic.http_get(to.node, port)
    yield


def accept_queue(to: Side, port: int) -> Iterator[None]:
    full = servers.Server("pod-a", "pod-a", http=port, udp=None, accept=False, backlog=2)
    with servers.running([full]), traffic.connections(to.pod_a, port, 3):
        connect(to.pod_a, port)
        yield


def syn_queue(to: Side, port: int, cookies: str = "0") -> Iterator[None]:
    little = servers.Server("pod-b", "pod-b", http=port, udp=None, backlog=4)
    with servers.running([little]), sysctl("net/ipv4/tcp_syncookies", cookies, "pod-b"):
        flood(to.pod_b, port, 9, to.drained)
        yield


def cookies(to: Side, port: int) -> Iterator[None]:
    return syn_queue(to, port, "1")


def old_timestamp(to: Side, port: int) -> Iterator[None]:
    """Two clients behind one address and port of a SNAT; the second client's clock is behind the first client's."""
    server = servers.Server("pod-a", "pod-a", http=port, udp=None)
    with (
        sysctl("net/ipv4/tcp_timestamps", "2", CLIENT),
        sysctl("net/netfilter/nf_conntrack_tcp_timeout_time_wait", "1"),
        shared_snat(to, port),
        servers.running([server]),
    ):
        traffic.http_get(to.pod_a, port)
        time.sleep(0.3)
        nfnetlink.conntrack_flush()
        packets.send_tcp(to.pod_a, port, src=to.neighbour, sport=33333, flags=packets.SYN, options=stamps(1))
        time.sleep(0.2)
        yield


def time_wait(to: Side, port: int) -> Iterator[None]:
    """A SYN behind the same SNAT without a timestamp; its number comes before those of the connection in TIME_WAIT."""
    server = servers.Server("pod-a", "pod-a", http=port, udp=None)
    with (
        sysctl("net/netfilter/nf_conntrack_tcp_timeout_time_wait", "1"),
        shared_snat(to, port),
        servers.running([server]),
    ):
        with traffic.connections(to.pod_a, port, 1) as (sock,):
            number = next_sequence_number(sock)
            sock.sendall(b"GET / HTTP/1.1\r\n\r\n")
            while sock.recv(4096):
                pass
        time.sleep(0.3)
        nfnetlink.conntrack_flush()
        seq = (number - 1000) % (1 << 32)
        packets.send_tcp(to.pod_a, port, src=to.neighbour, sport=33334, flags=packets.SYN, seq=seq)
        time.sleep(0.2)
        yield


def next_sequence_number(sock: socket.socket) -> int:
    """The sequence number of the next byte that a connection sends."""
    sock.setsockopt(socket.IPPROTO_TCP, TCP_REPAIR, 1)
    sock.setsockopt(socket.IPPROTO_TCP, TCP_REPAIR_QUEUE, TCP_SEND_QUEUE)
    number = sock.getsockopt(socket.IPPROTO_TCP, TCP_QUEUE_SEQ) % (1 << 32)
    sock.setsockopt(socket.IPPROTO_TCP, TCP_REPAIR, TCP_REPAIR_OFF_WITHOUT_PROBE)
    return number


def race(to: Side, port: int) -> Iterator[None]:
    """Two connections that get the same address and port by a SNAT."""
    server = servers.Server("pod-a", "pod-a", http=port, udp=None)
    with shared_snat(to, port), servers.running([server]), traffic.connections(to.pod_a, port, 1):
        connect(to.pod_a, port)
        yield


def table_full(to: Side, port: int) -> Iterator[None]:
    nfnetlink.conntrack_flush()
    with traffic.connections(to.pod_a, servers.HTTP_PORT, 3):
        time.sleep(0.3)
        with sysctl("net/netfilter/nf_conntrack_max", "2"):
            connect(to.node, port)
            yield
    nfnetlink.conntrack_flush()


def invalid(to: Side, port: int) -> Iterator[None]:
    traffic.http_get()
    for n in range(3):
        packets.send_tcp(to.pod_a, port, src=to.client, sport=33400 + n, flags=packets.SYN, spoil=1)
    time.sleep(0.2)
    yield


def rp_filter(to: Side, port: int) -> Iterator[None]:
    with sysctl("net/ipv4/conf/all/rp_filter", "1"):
        for n in range(3):
            packets.send_tcp(to.node, port, src="10.244.0.77", sport=33500 + n, flags=packets.SYN)
        time.sleep(0.2)
        yield


def martian(to: Side, port: int) -> Iterator[None]:
    for n in range(3):
        packets.send_tcp(to.node, port, src=to.node, sport=33600 + n, flags=packets.SYN)
    time.sleep(0.2)
    yield


def blackhole(to: Side, port: int) -> Iterator[None]:
    from pyroute2 import IPRoute

    with IPRoute() as route:
        route.route("add", dst=to.network, type="blackhole", family=to.family)
        try:
            connect(to.elsewhere, port)
            yield
        finally:
            route.route("del", dst=to.network, type="blackhole", family=to.family)


def neighbour(to: Side, port: int) -> Iterator[None]:
    connect(to.unused_pod, port, count=1, timeout=0.8)
    time.sleep(4)
    yield


def drop_rule(to: Side, port: int) -> Iterator[None]:
    with also_rules(f"*filter\n-I INPUT -p tcp -m tcp --dport {port} -j DROP\nCOMMIT\n", to.version):
        connect(to.node, port)
        yield


def reject_rule(to: Side, port: int) -> Iterator[None]:
    text = f"*filter\n-I INPUT -p tcp -m tcp --dport {port} -j REJECT --reject-with {to.unreachable}\nCOMMIT\n"
    with also_rules(text, to.version):
        connect(to.node, port)
        yield


def plain(to: Side, port: int) -> Iterator[None]:
    """A port of the node, without any change."""
    connect(to.node, port)
    yield


def other_address(to: Side, port: int) -> Iterator[None]:
    with socket.socket(to.family) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((to.loopback, port))
        sock.listen(4)
        connect(to.node, port)
        yield


def silent(to: Side, port: int) -> Iterator[None]:
    """An endpoint behind the node that never answers."""
    with forwarded(to, port, to.drain, 8080):
        connect(to.node, port, timeout=0.8)
        time.sleep(1.2)
        yield


def other_path(to: Side, port: int) -> Iterator[None]:
    """A pod with a second path to the client: its answer does not pass the node, which would have translated it back."""
    from pyroute2 import IPRoute

    server = servers.Server("pod-b", "pod-b", http=port, udp=None)
    with entered("pod-b"), IPRoute() as route:
        route.link("add", ifname="second", kind="veth", peer={"ifname": "second", "net_ns_fd": CLIENT})
        route.link("set", index=if_nametoindex("second"), state="up")
        with entered(CLIENT), IPRoute() as there:
            there.link("set", index=if_nametoindex("second"), state="up")
            there.addr("add", index=if_nametoindex("second"), address="192.168.99.1", prefixlen=24)
        route.addr("add", index=if_nametoindex("second"), address="192.168.99.2", prefixlen=24)
        route.route("add", dst="192.168.56.1/32", gateway="192.168.99.1", oif=if_nametoindex("second"))
    try:
        with forwarded(to, port, to.pod_b, port), servers.running([server]):
            connect(to.node, port)
            yield
    finally:
        with entered("pod-b"), IPRoute() as route, suppress(OSError):
            route.link("del", index=if_nametoindex("second"))


def old_connection(to: Side, port: int) -> Iterator[None]:
    """A client that has lost its connection and connects again from the same port."""
    server = servers.Server("pod-a", "pod-a", http=port, udp=None)
    with servers.running([server]), traffic.connections(to.pod_a, port, 1) as (sock,):
        packets.send_tcp(to.pod_a, port, src=to.client, sport=sock.getsockname()[1], flags=packets.SYN)
        time.sleep(0.2)
        yield


def half_open(to: Side, port: int) -> Iterator[None]:
    """A client that does not get the SYN-ACK: it sends the SYN again, and is answered again."""
    server = servers.Server("pod-b", "pod-b", http=port, udp=None)
    with servers.running([server]):
        packets.send_tcp(to.pod_b, port, src=to.drained, sport=20100, flags=packets.SYN)
        time.sleep(0.1)
        packets.send_tcp(to.pod_b, port, src=to.drained, sport=20100, flags=packets.SYN)
        time.sleep(0.2)
        yield


def dropped_in_the_pod(to: Side, port: int) -> Iterator[None]:
    """A pod that does not answer: its own rules drop the packets."""
    tool = f"ip{'6' * (to.version == 6)}tables-legacy"
    rule = ["INPUT", "-p", "tcp", "--dport", str(port), "-j", "DROP"]
    with entered("pod-c"):
        subprocess.run([tool, "-I", *rule], check=True)
    try:
        connect(PODS[2].addr6 if to.version == 6 else PODS[2].addr4, port)
        yield
    finally:
        with entered("pod-c"):
            subprocess.run([tool, "-D", *rule], check=True)
