# SPDX-License-Identifier: Apache-2.0
"""portmap's iptables rules for hostPorts."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from incidents.proxy.model import HostPort, end

NETWORK = "azure"


def chains(host_ports: Sequence[HostPort]) -> dict[str, list[str]]:
    """The chains of the nat table."""
    found: dict[str, list[str]] = {}
    for h in host_ports:
        chain = ("CNI-DN-" + hashlib.sha512((NETWORK + h.container).encode()).hexdigest())[:28]
        who = f'-m comment --comment "dnat name: \\"{NETWORK}\\" id: \\"{h.container}\\""'
        found.setdefault("CNI-HOSTPORT-DNAT", []).append(f"-p tcp {who} -m multiport --dports {h.port} -j {chain}")
        found[chain] = [f"-p tcp -m tcp --dport {h.port} -j DNAT --to-destination {end(h.address, h.to)}"]
    return found


def beside(kube: str, host_ports: Sequence[HostPort], first: str) -> list[str]:
    """The jumps of PREROUTING and OUTPUT. first: "kube", "portmap", or "anywhere" = portmap's, for every address."""
    local = "" if first == "anywhere" else "-m addrtype --dst-type LOCAL "
    jumps = [kube, f"{local}-j CNI-HOSTPORT-DNAT"] if host_ports else [kube]
    return jumps if first == "kube" else jumps[::-1]
