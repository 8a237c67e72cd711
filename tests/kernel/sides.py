# SPDX-License-Identifier: Apache-2.0
"""The small node's addresses of one IP version, and changes of the node for the length of a block."""

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
    """The node's addresses of one IP version. neighbour: unused, in the client's network. unused_pod: unused, in the pods'
    network. elsewhere: in a network to which only a scene has a route."""

    version: int
    node: str
    client: str
    pod_a: str
    pod_b: str
    gateway: str
    neighbour: str
    unused_pod: str
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
    """Sets a sysctl of a namespace (a path under /proc/sys) for the length of the block."""
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
    """Adds rules for the length of the block; then the scene's rules are restored."""
    rules.restore_text(text, version, "legacy", flush=False)
    try:
        yield
    finally:
        rules.restore("http-proxy", "http-proxy-v6")


@contextmanager
def shared_snat(to: Side, port: int) -> Iterator[None]:
    """A SNAT that gives all connections to a port the same source address and port."""
    source = format_endpoint(to.gateway, SNAT_PORT)
    with also_rules(f"*nat\n-A POSTROUTING -p tcp --dport {port} -j SNAT --to-source {source}\nCOMMIT\n", to.version):
        yield


@contextmanager
def forwarded(to: Side, port: int, address: str, there: int) -> Iterator[None]:
    """A DNAT from the node's port to a port of another address."""
    target = format_endpoint(address, there)
    text = f"*nat\n-I PREROUTING -p tcp -m tcp --dport {port} -j DNAT --to-destination {target}\nCOMMIT\n"
    with also_rules(text, to.version):
        yield
