# SPDX-License-Identifier: Apache-2.0
"""The small node seen over IPv4 or IPv6, and what of it can be changed for the length of a block."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from scenes import rules, topology
from scenes.netns import entered
from scenes.topology import PODS
from tracer.util.endpoint_format import format_endpoint

SNAT_PORT = 40000


@dataclass(frozen=True)
class Side:
    """The node's addresses of one IP version. neighbour: of the client's network, nobody's. nobody: of the pods' network,
    nobody's. elsewhere: of a network that only a scene has a route to."""

    version: int
    node: str
    client: str
    pod_a: str
    pod_b: str
    gateway: str
    neighbour: str
    nobody: str
    drain: str
    drained: str
    elsewhere: str
    network: str
    loopback: str
    unreachable: str

    @property
    def family(self) -> socket.AddressFamily:
        return socket.AF_INET6 if self.version == 6 else socket.AF_INET


V4 = Side(
    4, topology.NODE4, topology.CLIENT4, PODS[0].addr4, PODS[1].addr4, topology.GATEWAY4, "192.168.56.2",
    "10.244.0.99", topology.DRAIN4, "203.0.113.50", "198.51.100.7", "198.51.100.0/24", "127.0.0.1", "icmp-port-unreachable",
)  # fmt: skip
V6 = Side(
    6, topology.NODE6, topology.CLIENT6, PODS[0].addr6, PODS[1].addr6, topology.GATEWAY6, "fd00:56::2",
    "fd00:10:244::99", topology.DRAIN6, "fd00:113::50", "fd00:51::7", "fd00:51::/64", "::1", "icmp6-port-unreachable",
)  # fmt: skip


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
def also_rules(text: str, version: int = 4) -> Iterator[None]:
    """Rules added to those that are there, for the length of the block."""
    rules.restore_text(text, version, "legacy", flush=False)
    try:
        yield
    finally:
        rules.restore("http-proxy", "http-proxy-v6")


@contextmanager
def one_address(to: Side, port: int) -> Iterator[None]:
    """A SNAT that gives everybody who asks for a port the same address and port."""
    source = format_endpoint(to.gateway, SNAT_PORT)
    with also_rules(f"*nat\n-A POSTROUTING -p tcp --dport {port} -j SNAT --to-source {source}\nCOMMIT\n", to.version):
        yield


@contextmanager
def sent_on(to: Side, port: int, address: str, there: int) -> Iterator[None]:
    """The node sends what comes to its port on, to a port of another address."""
    target = format_endpoint(address, there)
    text = f"*nat\n-I PREROUTING -p tcp -m tcp --dport {port} -j DNAT --to-destination {target}\nCOMMIT\n"
    with also_rules(text, to.version):
        yield
