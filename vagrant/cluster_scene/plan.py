# SPDX-License-Identifier: Apache-2.0
"""Names and addresses of a cluster: node-a, node-b ... on one wire, pods behind a bridge on each, VXLAN between them.

client ns                       node-a                                          node-b
192.168.56.1 -- ext0 192.168.56.10 | eth0 192.168.60.11 ------ wire ------ eth0 192.168.60.12
                 cni0 10.244.1.1   | flannel.1 10.244.1.0  == VXLAN 1 ==  flannel.1 10.244.2.0
   shop-a 10.244.1.12, cart-a 10.244.1.11                         cart-b 10.244.2.11, shop-b 10.244.2.12
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from incidents.proxy.model import Service

NAMESPACE = "shop"
VXLAN_ID, VXLAN_PORT = 1, 8472
OVERLAY_MTU = 1450
CLIENT, CLIENT4, OUTSIDE4 = "client", "192.168.56.1", "192.168.56.10"
"""The client outside of the cluster, its address, and the address of the first node on its side."""
CART_PORT, CART_NODE_PORT = 80, 30080
ORDERS_NODE_PORT = 30081
STOCK_PORT = 53
HTTP_PORT, UDP_PORT = 8080, 5353
"""Ports of the pods' servers."""

Role = Literal["cart", "shop"]


@dataclass(frozen=True)
class PodPlan:
    """A pod; its network namespace has its name."""

    name: str
    address: str
    host_end: str


@dataclass(frozen=True)
class NodePlan:
    """A node. number: from 1."""

    number: int
    name: str

    @property
    def letter(self) -> str:
        return self.name.rpartition("-")[2]

    @property
    def address(self) -> str:
        """On the wire."""
        return f"192.168.60.{10 + self.number}"

    @property
    def pod_cidr(self) -> str:
        return f"10.244.{self.number}.0/24"

    @property
    def gateway(self) -> str:
        """The bridge's address."""
        return f"10.244.{self.number}.1"

    @property
    def tunnel_address(self) -> str:
        return f"10.244.{self.number}.0"

    @property
    def tunnel_mac(self) -> str:
        return f"02:00:0a:f4:{self.number:02x}:00"

    def pod(self, role: Role) -> PodPlan:
        """The node's pod with this role: cart serves, shop asks."""
        last = 11 if role == "cart" else 12
        return PodPlan(f"{role}-{self.letter}", f"10.244.{self.number}.{last}", f"veth-{role}")

    @property
    def pods(self) -> tuple[PodPlan, PodPlan]:
        return self.pod("cart"), self.pod("shop")


@dataclass(frozen=True)
class ClusterPlan:
    """All nodes, in order."""

    nodes: tuple[NodePlan, ...]

    @classmethod
    def of(cls, names: Sequence[str]) -> ClusterPlan:
        """The plan for nodes with these names."""
        return cls(tuple(NodePlan(number, name) for number, name in enumerate(names, start=1)))

    def node(self, name: str) -> NodePlan:
        """The node with this name."""
        return next(node for node in self.nodes if node.name == name)

    def services(self, on: NodePlan) -> tuple[Service, ...]:
        """The Services as the rules of one node have them.

        cart (TCP) and stock (UDP) have an endpoint on each node; orders has one on the last node, and policy Local.
        """
        last = self.nodes[-1]
        web = tuple((node.pod("cart").address, HTTP_PORT) for node in self.nodes)
        names = tuple((node.pod("cart").address, UDP_PORT) for node in self.nodes)
        orders = ((last.pod("cart").address, HTTP_PORT),)
        near = orders if on is last else ()
        return (
            Service(f"{NAMESPACE}/cart", "172.30.0.10", CART_PORT, CART_NODE_PORT, web),
            Service(f"{NAMESPACE}/stock", "172.30.0.53", STOCK_PORT, 0, names, protocol="udp"),
            Service(f"{NAMESPACE}/orders", "172.30.0.11", 80, ORDERS_NODE_PORT, orders, local=True, near=near),
        )
