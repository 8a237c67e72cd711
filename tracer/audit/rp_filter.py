# SPDX-License-Identifier: Apache-2.0
"""Strict reverse path filtering on a tunnel: packets are dropped without a trace if their route back is another interface."""

from __future__ import annotations

from collections.abc import Iterator

from tracer.audit import _needs
from tracer.audit.missing_masquerade import TUNNELS
from tracer.audit.state import NodeState
from tracer.model.finding import Finding, FindingEvidence

STRICT = 1

NEEDS = (_needs.kube_proxy,)


def check(state: NodeState) -> Iterator[Finding]:
    for link in state.routes.links() if state.has_kube_proxy else ():
        names = [f"net/ipv4/conf/{scope}/rp_filter" for scope in ("all", link.name)]
        values = [state.context.node.setting(name) for name in names]
        # The kernel takes the greater one of the two (ip-sysctl.rst); 2 is loose.
        if link.kind in TUNNELS and all(v.isdigit() for v in values) and max(map(int, values)) == STRICT:
            yield Finding(
                name="",
                key=(link.name,),
                cause=(
                    f"rp_filter is strict on {link.name}: perhaps packets of other nodes are dropped there without a trace, for"
                    f" their answers may leave by another interface."
                ),
                proofs=tuple(
                    FindingEvidence("setting", f"{name.replace('/', '.')} = {value}", "/proc/sys")
                    for name, value in zip(names, values, strict=True)
                ),
                check="`nstat -az TcpExtIPReversePathFilter` grows with every packet that is dropped for it.",
                cure=f"`sysctl -w net.ipv4.conf.{link.name}.rp_filter=2` (loose), or 0, if the counter grows.",
                certain=False,
            )
