# SPDX-License-Identifier: Apache-2.0
"""Builds a node of the cluster on this machine, which is thrown away afterwards: nothing is ever removed."""

from __future__ import annotations

import subprocess
from pathlib import Path

from cluster_scene import faults
from cluster_scene import plan as names
from cluster_scene.plan import ClusterPlan, NodePlan
from incidents.links import ip
from scenes import rules, servers
from scenes.topology import set_node_sysctls, use_bridge_netfilter


def build(plan: ClusterPlan, node: NodePlan, backend: rules.Backend) -> None:
    """Everything: links, overlay, rules, servers."""
    subprocess.run(["modprobe", "-a", "virtio_net", "vxlan"], check=True)
    set_node_sysctls()
    use_bridge_netfilter()
    links(node)
    overlay(plan, node)
    rules.restore_text(faults.rules_text(plan, node, "none"), 4, backend)
    cart = node.pod("cart").name
    servers.start([servers.Server(cart, cart, names.HTTP_PORT, names.UDP_PORT)])


def links(node: NodePlan) -> None:
    """The wire, the pods, the client of the first node. Addresses of other machines are found by ARP, as on a real network."""
    lines = [
        f"addr add {node.address}/24 dev eth0",
        "link set eth0 up",
        f"link add cni0 mtu {names.OVERLAY_MTU} type bridge",
        f"addr add {node.gateway}/24 dev cni0",
        "link set cni0 up",
    ]
    mtu = f"mtu {names.OVERLAY_MTU}"
    for pod in node.pods:
        lines += [
            f"netns add {pod.name}",
            f"link add {pod.host_end} {mtu} type veth peer name eth0 {mtu} netns {pod.name}",
            f"link set {pod.host_end} master cni0 up",
            *_inside(pod.name, pod.address, node.gateway),
        ]
    if node.number == 1:
        lines += [
            f"netns add {names.CLIENT}",
            f"link add ext0 type veth peer name eth0 netns {names.CLIENT}",
            f"addr add {names.OUTSIDE4}/24 dev ext0",
            "link set ext0 up",
            *_inside(names.CLIENT, names.CLIENT4, names.OUTSIDE4),
        ]
    # Without a route no packet from this node itself to a ClusterIP reaches the rules.
    lines.append("route add default via 192.168.60.1 dev eth0")
    ip(*lines)


def overlay(plan: ClusterPlan, node: NodePlan) -> None:
    """flannel's: one device, and for each other node a route, a neighbour and a forwarding entry."""
    name = f"flannel.{names.VXLAN_ID}"
    options = f"id {names.VXLAN_ID} local {node.address} dev eth0 dstport {names.VXLAN_PORT} nolearning"
    ip(
        f"link add {name} address {node.tunnel_mac} mtu {names.OVERLAY_MTU} type vxlan {options}",
        f"addr add {node.tunnel_address}/32 dev {name}",
        f"link set {name} up",
    )
    for other in plan.nodes:
        if other is not node:
            ip(
                f"neigh add {other.tunnel_address} lladdr {other.tunnel_mac} dev {name} nud permanent",
                f"route add {other.pod_cidr} via {other.tunnel_address} dev {name} onlink",
            )
            entry = ["bridge", "fdb", "append", other.tunnel_mac, "dev", name, "dst", other.address]
            subprocess.run(entry, check=True, capture_output=True)


def _inside(name: str, address: str, gateway: str) -> list[str]:
    return [
        f"-n {name} link set lo up",
        f"-n {name} addr add {address}/24 dev eth0",
        f"-n {name} link set eth0 up",
        f"-n {name} route add default via {gateway}",
    ]


def count_drops() -> dict[str, int]:
    """Packets that this node's links have dropped so far, by interface."""
    found = {}
    for link in Path("/sys/class/net").iterdir():
        counts = [int((link / "statistics" / name).read_text()) for name in ("rx_dropped", "tx_dropped", "rx_errors")]
        if sum(counts):
            found[link.name] = sum(counts)
    return found
