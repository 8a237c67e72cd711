# SPDX-License-Identifier: Apache-2.0
"""The node does not forward: packets from outside to its pods are dropped by the routing, without any rule."""

from __future__ import annotations

from collections.abc import Iterator

from tracer.audit import _needs
from tracer.audit.state import NodeState
from tracer.model.finding import Finding, FindingEvidence

SETTINGS = (("IPv4", "net/ipv4/ip_forward", False), ("IPv6", "net/ipv6/conf/all/forwarding", True))

NEEDS = (_needs.kube_proxy, _needs.this_node)


def check(state: NodeState) -> Iterator[Finding]:
    node = state.cluster.store.this_node()
    for family, name, v6 in SETTINGS:
        # A node has IPv6 pods only if it has a network for them.
        used = any(":" in c for c in node.pod_cidrs) if v6 and node else not v6
        if state.context.node.setting(name) == "0" and used and state.has_kube_proxy:
            dotted = name.replace("/", ".")
            yield Finding(
                name="",
                key=(name,),
                cause=(
                    f"{dotted} is 0 on a node with kube-proxy's rules: the kernel drops every {family} packet that comes"
                    f" from outside for a pod, or from a pod and leaves the node."
                ),
                proofs=(FindingEvidence("setting", f"{dotted} = 0", "/proc/sys"),),
                check=f"`sysctl {dotted}`; `nstat -az IpForwDatagrams` does not grow.",
                cure=f"`sysctl -w {dotted}=1`, and a file in /etc/sysctl.d: something has set it back, for kubelet needs it.",
            )
