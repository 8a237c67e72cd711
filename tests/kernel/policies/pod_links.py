# SPDX-License-Identifier: Apache-2.0
"""Pods on links of their own, as Calico connects them: routed, without a bridge. And packets through them.

    pod namespaces 10.244.0.11 ... 15 -- cali* of the node | up0 192.168.56.10 -- client 192.168.56.1
                                                           | tun0 -- far: pods 10.244.3.5, 10.244.3.6 of node-2

A receiver in each namespace notes every packet that arrives, before any rule or socket there.
"""

from __future__ import annotations

import contextlib
import errno
import select
import socket
import struct
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scenes.netns import entered
from tests.support.policies import Object, node, pod
from tests.support.policy_semantics import address_of
from tests.support.policy_writers.calico_policies import interface_of

NODE, CLIENT = "192.168.56.10", "192.168.56.1"
FAR_NODE = "192.168.57.20"
PORTS = [("http", 8080), ("metrics", 9090), ("dns", 53, "UDP")]
OTHER_PORTS = [("http", 80), ("dns", 5353, "UDP")]
LOCAL = {
    "shop/web": ("10.244.0.11", PORTS), "shop/cart": ("10.244.0.12", OTHER_PORTS), "shop/job": ("10.244.0.13", []),
    "db/pg": ("10.244.0.14", PORTS), "ops/probe-with-a-long-name-of-a-pod": ("10.244.0.15", OTHER_PORTS),
}  # fmt: skip
FAR = {"shop/far-web": ("10.244.3.5", PORTS), "db/far-pg": ("10.244.3.6", OTHER_PORTS)}
SETTINGS = {
    "ipv4/ip_forward": "1", "ipv4/conf/all/rp_filter": "0", "ipv4/conf/default/rp_filter": "0", "ipv4/icmp_ratelimit": "0",
    "ipv4/icmp_msgs_per_sec": "100000", "ipv6/conf/all/disable_ipv6": "1", "ipv6/conf/default/disable_ipv6": "1",
}  # fmt: skip
ARRIVAL_SECONDS = 0.7
"""Longest time without an arrival before all packets count as arrived or dropped."""

Key = tuple[str, str, int, str, int]
"""protocol ("TCP" or "UDP"), source, its port, destination, its port."""


def namespaces() -> dict[str, str]:
    """Address -> network namespace."""
    found = {address: f"pod-{address.rpartition('.')[2]}" for address, _ in LOCAL.values()}
    return found | {address: "far" for address, _ in FAR.values()} | {CLIENT: "client"}


def pods(labels: dict[str, dict[str, Any]]) -> list[Object]:
    """The pods with these labels. labels: by name of the pod."""
    return [
        pod(name, address, on, ports=ports, **labels.get(name, {}))
        for on, group in (("node-1", LOCAL), ("node-2", FAR)) for name, (address, ports) in group.items()
    ]  # fmt: skip


def nodes() -> list[Object]:
    return [node("node-1", NODE), node("node-2", FAR_NODE)]


@contextlib.contextmanager
def links() -> Iterator[None]:
    """The links, within the block."""
    spaces = sorted(set(namespaces().values()))
    _remove(spaces)
    for name, value in SETTINGS.items():
        path = Path("/proc/sys/net", name)
        if path.exists():
            path.write_text(value)
    for space in spaces:
        subprocess.run(["ip", "netns", "add", space], check=True)
    lines = [
        "link add up0 type veth peer name eth0 netns client", f"addr add {NODE}/24 dev up0", "link set up0 up",
        f"route replace default via {CLIENT} dev up0",
        "link add tun0 type veth peer name eth0 netns far", "addr add 10.244.3.1/24 dev tun0", "link set tun0 up",
    ]  # fmt: skip
    for body in _local():
        address, host = address_of(body), interface_of(body)
        lines += [f"link add {host} type veth peer name eth0 netns {namespaces()[address]}", f"link set {host} up",
                  f"route add {address}/32 dev {host}"]  # fmt: skip
    _ip("", lines)
    up = ["link set lo up", "link set eth0 up"]
    _ip("client", [*up, f"addr add {CLIENT}/24 dev eth0", f"route add default via {NODE}"])
    far = [f"addr add {address}/24 dev eth0" for address, _ in FAR.values()]
    _ip("far", [*up, *far, "route add default via 10.244.3.1"])
    for body in _local():
        address, host = address_of(body), interface_of(body)
        space = namespaces()[address]
        _ip(space, [*up, f"addr add {address}/32 dev eth0", "route add 169.254.1.1 dev eth0 scope link",
                    "route add default via 169.254.1.1 dev eth0",
                    f"neigh replace 169.254.1.1 lladdr {_mac('', host)} dev eth0 nud permanent"])  # fmt: skip
        _ip("", [f"neigh replace {address} lladdr {_mac(space, 'eth0')} dev {host} nud permanent"])
    try:
        yield
    finally:
        _remove(spaces)


def _local() -> list[Object]:
    return [pod(name, address) for name, (address, _) in LOCAL.items()]


def _remove(spaces: list[str]) -> None:
    for device in ("up0", "tun0", *(interface_of(body) for body in _local())):
        subprocess.run(["ip", "link", "del", device], capture_output=True, check=False)
    for space in spaces:
        subprocess.run(["ip", "netns", "del", space], capture_output=True, check=False)


def _ip(space: str, lines: list[str]) -> None:
    command = ["ip", *(["-n", space] if space else []), "-batch", "-"]
    subprocess.run(command, input="".join(f"{line}\n" for line in lines), text=True, check=True)


def _mac(space: str, device: str) -> str:
    with entered(space or None):
        sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
        sock.bind((device, 0))
        address = sock.getsockname()[4]
        sock.close()
    return ":".join(f"{byte:02x}" for byte in address[:6])


@dataclass(frozen=True)
class Sent:
    """One packet. key: what identifies it."""

    key: Key

    @property
    def text(self) -> str:
        protocol, source, _, to, port = self.key
        return f"{protocol} {source} -> {to}:{port}"


class Receivers:
    """Notes what arrives in each namespace."""

    def __init__(self) -> None:
        self._socks: list[socket.socket] = []
        for space in sorted(set(namespaces().values())):
            with entered(space):
                sock = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(0x0800))
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
            sock.setblocking(False)
            self._socks.append(sock)

    def __enter__(self) -> Receivers:
        return self

    def __exit__(self, *_: object) -> None:
        for sock in self._socks:
            sock.close()

    def send(self, packets: list[Sent]) -> set[Key]:
        """Sends these packets at once; returns those that arrived, and others that arrived meanwhile."""
        arrived: set[Key] = set()
        self._read(arrived, 0)
        held = [_send(each.key) for each in packets]
        last = time.monotonic()
        while time.monotonic() - last < ARRIVAL_SECONDS:
            if self._read(arrived, 0.1):
                last = time.monotonic()
        for sock in held:
            sock.close()
        return arrived

    def _read(self, arrived: set[Key], seconds: float) -> bool:
        before = len(arrived)
        ready, _, _ = select.select(self._socks, (), (), seconds)
        for sock in ready:
            with contextlib.suppress(BlockingIOError):
                while True:
                    data, sender = sock.recvfrom(2048)
                    key = _key(data) if sender[2] != socket.PACKET_OUTGOING else None
                    if key:
                        arrived.add(key)
        return len(arrived) > before


def _key(data: bytes) -> Key | None:
    protocol = {6: "TCP", 17: "UDP"}.get(data[9])
    start = (data[0] & 15) * 4
    if not protocol or len(data) < start + 4 or (protocol == "TCP" and data[start + 13] & 0x12 != 0x02):
        return None
    sport, dport = struct.unpack("!HH", data[start : start + 4])
    return protocol, socket.inet_ntoa(data[12:16]), sport, socket.inet_ntoa(data[16:20]), dport


def _send(key: Key) -> socket.socket:
    protocol, source, sport, to, port = key
    with entered(namespaces()[source]):
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM if protocol == "TCP" else socket.SOCK_DGRAM)
    sock.setblocking(False)
    sock.bind((source, sport))
    if protocol == "UDP":
        sock.sendto(b"?", (to, port))
    else:
        code = sock.connect_ex((to, port))
        assert code in (0, errno.EINPROGRESS, errno.ECONNREFUSED), errno.errorcode.get(code, code)
    return sock
