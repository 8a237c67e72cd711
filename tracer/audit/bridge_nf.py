# SPDX-License-Identifier: Apache-2.0
"""Bridged packets bypass the rules: a pod that uses a Service with a pod on the same bridge gets an untranslated answer."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_address, ip_network

from tracer.audit import _needs
from tracer.audit.state import NodeState
from tracer.model.finding import Finding, FindingEvidence
from tracer.node.routes import NetworkDevice

SETTINGS = ("net/bridge/bridge-nf-call-iptables", "net/bridge/bridge-nf-call-ip6tables")

NEEDS = (_needs.kube_proxy, _needs.this_node)


def check(state: NodeState) -> Iterator[Finding]:
    for link in state.routes.links() if state.has_kube_proxy else ():
        for v6, name in enumerate(SETTINGS):
            network = _of_pods(state, link, bool(v6)) if link.kind == "bridge" and link.ports > 1 else ""
            value = state.context.node.setting(name)
            if network and value != "1":
                yield _tell(link, network, name, value)


def _of_pods(state: NodeState, link: NetworkDevice, v6: bool) -> str:
    """The bridge's network if it is that of this node's pods, else ""."""
    node, sandboxes = state.cluster.store.this_node(), state.cluster.sandboxes
    for network in (n for n in link.networks if (":" in n) == v6):
        if node and network in node.pod_cidrs:
            return network
        addresses = (a for s in sandboxes.every() for a in s.addresses if (":" in a) == v6)
        if any(ip_address(a) in ip_network(network) for a in addresses):
            return network
    return ""


def _tell(link: NetworkDevice, network: str, name: str, value: str) -> Finding:
    dotted = name.replace("/", ".")
    shown = f"{dotted} = {value}" if value else f"there is no {dotted}: the module br_netfilter is not loaded"
    return Finding(
        name="",
        key=(link.name, name),
        cause=(
            f"Packets between pods on the bridge {link.name} bypass the rules: when a pod connects to a Service and the answer"
            f" comes from a pod on the same bridge, it is not translated back, and the first pod does not recognise it."
        ),
        proofs=(
            FindingEvidence("setting", shown, "/proc/sys"),
            FindingEvidence("address", f"{link.name} has {network} and {link.ports} interfaces in it", "netlink"),
        ),
        check=f"`sysctl {dotted}`. From a pod, ask a Service whose pod is on this node: it times out now and then.",
        cure=(
            f"{'' if value else '`modprobe br_netfilter`, '}`sysctl -w {dotted}=1`; for the next boot in /etc/modules-load.d"
            " and /etc/sysctl.d."
        ),
    )
