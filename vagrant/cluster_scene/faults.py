# SPDX-License-Identifier: Apache-2.0
"""Faults of one node that only several nodes together show. Each call replaces the fault before it; NONE is a healthy node.

stale_endpoint   the rules send each request for `cart` to an endpoint that is gone: kube-proxy is behind
no_rules         no rule for `cart`
no_masquerade    `cart` has the endpoint of the last node, and requests to its NodePort keep the address of their client
short_tunnel     the tunnel carries less than the interfaces of the pods allow, and senders are informed
silent_tunnel    the same, and senders are not informed
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, get_args

from cluster_scene import plan as names
from cluster_scene.plan import ClusterPlan, NodePlan
from incidents.links import ip
from incidents.proxy import iptables
from incidents.proxy.model import Service
from scenes import rules

Fault = Literal["none", "stale_endpoint", "no_rules", "no_masquerade", "short_tunnel", "silent_tunnel"]
FAULTS: tuple[Fault, ...] = get_args(Fault)
POD_ROUTE = "10.244.0.0/16"
SHORT_MTU = 1300
"""MTU of the tunnel with a fault, bytes: less than names.OVERLAY_MTU."""
ROUTER, ROUTER_MAC = "192.168.60.1", "02:00:00:a8:3c:01"
"""The default route of the nodes. No machine has this link address: the wire drops what is sent there."""
CART = f"{names.NAMESPACE}/cart"
NO_REPORTS = """*filter
-I OUTPUT -p icmp --icmp-type fragmentation-needed -j DROP
COMMIT
"""


def gone_address(plan: ClusterPlan) -> str:
    """An address of the last node's pod network that no pod has."""
    return plan.nodes[-1].pod_cidr.replace(".0/24", ".99")


def services(plan: ClusterPlan, node: NodePlan, fault: Fault) -> tuple[Service, ...]:
    """The Services as the rules of a node with a fault have them."""
    found: list[Service] = []
    for service in plan.services(node):
        if service.name != CART:
            found.append(service)
        elif fault == "stale_endpoint":
            found.append(replace(service, ends=((gone_address(plan), names.HTTP_PORT),)))
        elif fault == "no_masquerade":
            found.append(replace(service, ends=service.ends[-1:]))
        elif fault != "no_rules":
            found.append(service)
    return tuple(found)


def rules_text(plan: ClusterPlan, node: NodePlan, fault: Fault) -> str:
    """The rules of a node with a fault, in the format of iptables-save."""
    text = iptables.rules(services(plan, node, fault), pods=POD_ROUTE)
    if fault != "no_masquerade":
        return text
    comment = f"masquerade traffic for {CART} external destinations"
    return "".join(line for line in text.splitlines(keepends=True) if comment not in line)


def make(plan: ClusterPlan, node: NodePlan, backend: rules.Backend, fault: Fault) -> None:
    """Gives this machine a fault, in place of the one before it."""
    rules.restore_text(rules_text(plan, node, fault), 4, backend)
    if fault == "silent_tunnel":
        rules.restore_text(NO_REPORTS, 4, backend, flush=False)
    mtu = SHORT_MTU if fault in ("short_tunnel", "silent_tunnel") else names.OVERLAY_MTU
    ip(
        f"link set flannel.{names.VXLAN_ID} mtu {mtu}",
        f"neigh replace {ROUTER} lladdr {ROUTER_MAC} dev eth0 nud permanent",
    )
    _accept_any_way_back()
    forget_mtus([pod.name for pod in node.pods])


def _accept_any_way_back() -> None:
    """Lets packets in by an interface that is not the way back to their source: otherwise the kernel drops the requests."""
    for setting in Path("/proc/sys/net/ipv4/conf").glob("*/rp_filter"):
        setting.write_text("0")


def forget_mtus(namespaces: Sequence[str]) -> None:
    """Lets pods forget the MTUs that they have learned."""
    for name in namespaces:
        subprocess.run(["ip", "-n", name, "route", "flush", "cache"], check=True, capture_output=True)
