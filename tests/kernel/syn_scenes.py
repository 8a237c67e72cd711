"""Each cause of docs/syns.md made for real on the small node, with traffic of its own port.

A scene is one row of SCENES: its port, the cause that its SYNs must have, others that come with it (what fills a queue is
accepted), and a context manager that builds it; the traffic is made in it, and what it changed is put back behind it.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from socket import if_nametoindex

from scenes import nfnetlink, packets, rules, servers, traffic
from scenes.netns import entered
from scenes.topology import CLIENT, DRAIN4, NODE4, PODS

POD_A, POD_B = PODS[0].addr4, PODS[1].addr4
SNAT_PORT = 40000
ELSEWHERE = "198.51.100.7"
NOBODY = "10.244.0.99"


@dataclass(frozen=True)
class Scene:
    """port: of its SYNs. cause: what they must have, `least` of them or more. also: causes that come with it."""

    name: str
    port: int
    cause: str
    make: Callable[[int], Iterator[None]]
    also: tuple[str, ...] = ()
    least: int = 1

    @contextmanager
    def up(self) -> Iterator[None]:
        """Builds it and makes its traffic; what listens there is there until the block ends."""
        yield from self.make(self.port)


@contextmanager
def sysctl(name: str, value: str, ns: str | None = None) -> Iterator[None]:
    """A sysctl of a namespace (a path under /proc/sys) for the length of the block."""
    path = Path("/proc/sys", name)
    with entered(ns):
        before = path.read_text().strip()
        path.write_text(value)
    try:
        yield
    finally:
        with entered(ns):
            path.write_text(before)


@contextmanager
def also_rules(text: str) -> Iterator[None]:
    """Rules added to those that are there, for the length of the block."""
    rules.restore_text(text, 4, "legacy", flush=False)
    try:
        yield
    finally:
        rules.restore("http-proxy", "http-proxy-v6")


def ask(address: str, port: int, count: int = 2, timeout: float = 0.6) -> None:
    for _ in range(count):
        traffic.tcp_connect(address, port, timeout=timeout)


def stamps(value: int) -> bytes:
    """A timestamp option, as Linux writes it in a SYN."""
    return struct.pack("!BBBBII", 1, 1, 8, 10, value, 0)


def flood(address: str, port: int, count: int, src: str = "203.0.113.50") -> None:
    """SYNs whose answers nobody gets."""
    for n in range(count):
        packets.send_tcp(address, port, src=src, sport=20000 + n, flags=packets.SYN)
        time.sleep(0.02)


def accepted(port: int) -> Iterator[None]:
    for _ in range(3):
        traffic.http_get(port=port)
    yield


def accept_queue(port: int) -> Iterator[None]:
    full = servers.Server("pod-a", "pod-a", http=port, udp=None, accept=False, backlog=2)
    with servers.running([full]), traffic.connections(POD_A, port, 3):
        ask(POD_A, port)
        yield


def syn_queue(port: int, cookies: str = "0") -> Iterator[None]:
    little = servers.Server("pod-b", "pod-b", http=port, udp=None, backlog=4)
    with servers.running([little]), sysctl("net/ipv4/tcp_syncookies", cookies, "pod-b"):
        flood(POD_B, port, 9)
        yield


def cookies(port: int) -> Iterator[None]:
    return syn_queue(port, "1")


def old_timestamp(port: int) -> Iterator[None]:
    """Two clients behind one address and port of a SNAT; the second one's clock is behind the first one's."""
    one_port = f"*nat\n-A POSTROUTING -p tcp --dport {port} -j SNAT --to-source 10.244.0.1:{SNAT_PORT}\nCOMMIT\n"
    server = servers.Server("pod-a", "pod-a", http=port, udp=None)
    with (
        sysctl("net/ipv4/tcp_timestamps", "2", CLIENT),
        sysctl("net/netfilter/nf_conntrack_tcp_timeout_time_wait", "1"),
        also_rules(one_port),
        servers.running([server]),
    ):
        traffic.http_get(POD_A, port)
        time.sleep(0.3)
        nfnetlink.conntrack_flush()
        packets.send_tcp(POD_A, port, src="192.168.56.2", sport=33333, flags=packets.SYN, options=stamps(1))
        time.sleep(0.2)
        yield


def race(port: int) -> Iterator[None]:
    """Two connections that a SNAT gives one address and port."""
    one_port = f"*nat\n-A POSTROUTING -p tcp --dport {port} -j SNAT --to-source 10.244.0.1:{SNAT_PORT}\nCOMMIT\n"
    server = servers.Server("pod-a", "pod-a", http=port, udp=None)
    with also_rules(one_port), servers.running([server]), traffic.connections(POD_A, port, 1):
        ask(POD_A, port)
        yield


def table_full(port: int) -> Iterator[None]:
    nfnetlink.conntrack_flush()
    with traffic.connections(POD_A, servers.HTTP_PORT, 3):
        time.sleep(0.3)
        with sysctl("net/netfilter/nf_conntrack_max", "2"):
            ask(NODE4, port)
            yield
    nfnetlink.conntrack_flush()


def invalid(port: int) -> Iterator[None]:
    traffic.http_get()
    for n in range(3):
        packets.send_tcp(POD_A, port, sport=33400 + n, flags=packets.SYN, spoil=1)
    time.sleep(0.2)
    yield


def rp_filter(port: int) -> Iterator[None]:
    with sysctl("net/ipv4/conf/all/rp_filter", "1"):
        for n in range(3):
            packets.send_tcp(NODE4, port, src="10.244.0.77", sport=33500 + n, flags=packets.SYN)
        time.sleep(0.2)
        yield


def martian(port: int) -> Iterator[None]:
    for n in range(3):
        packets.send_tcp(NODE4, port, src=NODE4, sport=33600 + n, flags=packets.SYN)
    time.sleep(0.2)
    yield


def blackhole(port: int) -> Iterator[None]:
    from pyroute2 import IPRoute

    with IPRoute() as route:
        route.route("add", dst="198.51.100.0/24", type="blackhole")
        try:
            ask(ELSEWHERE, port)
            yield
        finally:
            route.route("del", dst="198.51.100.0/24", type="blackhole")


def neighbour(port: int) -> Iterator[None]:
    ask(NOBODY, port, count=1, timeout=0.8)
    time.sleep(4)
    yield


def drop_rule(port: int) -> Iterator[None]:
    with also_rules(f"*filter\n-I INPUT -p tcp -m tcp --dport {port} -j DROP\nCOMMIT\n"):
        ask(NODE4, port)
        yield


def reject_rule(port: int) -> Iterator[None]:
    text = f"*filter\n-I INPUT -p tcp -m tcp --dport {port} -j REJECT --reject-with icmp-port-unreachable\nCOMMIT\n"
    with also_rules(text):
        ask(NODE4, port)
        yield


def plain(port: int) -> Iterator[None]:
    """A port of the node, as it is."""
    ask(NODE4, port)
    yield


def other_address(port: int) -> Iterator[None]:
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(("127.0.0.1", port))
        sock.listen(4)
        ask(NODE4, port)
        yield


def silent(port: int) -> Iterator[None]:
    """An endpoint behind the node from which nothing ever comes."""
    to = f"*nat\n-I PREROUTING -p tcp -m tcp --dport {port} -j DNAT --to-destination {DRAIN4}:8080\nCOMMIT\n"
    with also_rules(to):
        ask(NODE4, port, timeout=0.8)
        time.sleep(1.2)
        yield


def other_path(port: int) -> Iterator[None]:
    """A pod with a second way to the client: its answer passes by the node, which would have translated it back."""
    from pyroute2 import IPRoute

    to = f"*nat\n-I PREROUTING -p tcp -m tcp --dport {port} -j DNAT --to-destination {POD_B}:{port}\nCOMMIT\n"
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
        with also_rules(to), servers.running([server]):
            ask(NODE4, port)
            yield
    finally:
        with entered("pod-b"), IPRoute() as route, suppress(OSError):
            route.link("del", index=if_nametoindex("second"))


def old_connection(port: int) -> Iterator[None]:
    """A client that has lost its connection and asks from the same port again."""
    server = servers.Server("pod-a", "pod-a", http=port, udp=None)
    with servers.running([server]), traffic.connections(POD_A, port, 1) as (sock,):
        packets.send_tcp(POD_A, port, sport=sock.getsockname()[1], flags=packets.SYN)
        time.sleep(0.2)
        yield


SCENES = (
    Scene("answered", traffic.NODEPORT_HTTP, "accepted", accepted, least=3),
    Scene("listener that does not accept", 9101, "accept queue full", accept_queue, ("accepted",), 2),
    Scene("flood, cookies off", 9102, "SYN queue full", syn_queue, ("half-open",), 3),
    Scene("flood, cookies on", 9103, "SYN cookie sent", cookies, ("half-open",), 3),
    Scene("two clients behind one SNAT address", 9104, "old timestamp", old_timestamp, ("accepted",)),
    Scene("one tuple for two connections", 9105, "conntrack race lost", race, ("accepted",), 2),
    Scene("conntrack's table full", 9106, "conntrack table full", table_full, (), 2),
    Scene("a bad checksum", 9107, "conntrack INVALID", invalid, (), 3),
    Scene("rp_filter", 9108, "rp_filter", rp_filter, (), 3),
    Scene("the node's own address as source", 9109, "martian source", martian, (), 3),
    Scene("blackhole route", 9110, "no route", blackhole, (), 2),
    Scene("neighbour that does not answer", 9111, "neighbour failed", neighbour),
    Scene("DROP rule", 9112, "rule", drop_rule, (), 2),
    Scene("REJECT rule", 9113, "rejected", reject_rule, (), 2),
    Scene("no endpoints", traffic.NODEPORT_LONELY, "no endpoints", plain, (), 2),
    Scene("no listener", 9115, "no listener", plain, (), 2),
    Scene("listener on another address", 9116, "listener on another address", other_address, (), 2),
    Scene("silent endpoint", 9117, "no answer", silent, (), 2),
    Scene("reply by another path", 9118, "SYN-ACK not recognised", other_path, (), 2),
    Scene("old connection", 9119, "old connection", old_connection, ("accepted",)),
)
"""In the order in which they are made."""
