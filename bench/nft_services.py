# SPDX-License-Identifier: Apache-2.0
"""The table of kube-proxy's nftables mode for any number of Services, as text for `nft -f`.

Chains, maps, sets and rules have the form that kube-proxy 1.36 writes (compared with a recorded node of 2,000 Services): one
chain and one rule per Service with its endpoints in an unnamed map, a chain more for a NodePort, and one per endpoint with
session affinity.
"""

from __future__ import annotations

import hashlib
from base64 import b32encode
from collections.abc import Iterator
from dataclasses import dataclass

ENDPOINTS = 3
NODEPORTS = range(30000, 32768)
"""The default range of NodePorts."""
AFFINE_EVERY, EMPTY_EVERY = 100, 50
"""One Service in so many has session affinity; one in so many has no endpoint."""
POD_PORT, SERVICE_PORT = 8080, 80
NODE, PODS, CLUSTER_IPS = "192.168.56.10", "10.0.0.0/8", "172.16.0.0/12"
_MASQUERADE = "masquerade clusterIP traffic from outside cluster"

_FIXED = """
table ip kube-proxy {{
	comment "rules for kube-proxy"
	set hairpin-connections {{ type ipv4_addr . ipv4_addr . inet_proto . inet_service; comment "service hairpin connections"; }}
	set cluster-ips {{ type ipv4_addr; comment "Active ClusterIPs"; }}
	set nodeport-ips {{ type ipv4_addr; comment "IPs that accept NodePort traffic"; elements = {{ {node} }} }}
	map no-endpoint-services {{ type ipv4_addr . inet_proto . inet_service : verdict; }}
	map no-endpoint-nodeports {{ type inet_proto . inet_service : verdict; }}
	map firewall-ips {{ type ipv4_addr . inet_proto . inet_service : verdict; }}
	map service-ips {{
		type ipv4_addr . inet_proto . inet_service : verdict
		comment "ClusterIP, ExternalIP and LoadBalancer IP traffic"
	}}
	map service-nodeports {{ type inet_proto . inet_service : verdict; comment "NodePort traffic"; }}
	chain firewall-check {{ ip daddr . meta l4proto . th dport vmap @firewall-ips; }}
	chain nodeport-endpoints-check {{ ip daddr @nodeport-ips meta l4proto . th dport vmap @no-endpoint-nodeports; }}
	chain service-endpoints-check {{ ip daddr . meta l4proto . th dport vmap @no-endpoint-services; }}
	chain reject-chain {{ reject; }}
	chain cluster-ips-check {{
		ip daddr @cluster-ips reject comment "Reject traffic to invalid ports of ClusterIPs"
		ip daddr {cluster_ips} drop comment "Drop traffic to unallocated ClusterIPs"
	}}
	chain masquerading {{
		meta mark & 0x4000 != 0 meta mark set meta mark xor 0x4000 masquerade fully-random
		ct status dnat ip saddr . ip daddr . meta l4proto . th dport @hairpin-connections masquerade fully-random
	}}
	chain services {{
		ip daddr @cluster-ips ip saddr != {pods} meta mark set meta mark or 0x4000 comment "{masquerade}"
		ip daddr . meta l4proto . th dport vmap @service-ips
		ip daddr @nodeport-ips meta l4proto . th dport vmap @service-nodeports
	}}
	chain filter-prerouting-pre-dnat {{ type filter hook prerouting priority -110; ct state new jump firewall-check; }}
	chain filter-output-pre-dnat {{ type filter hook output priority -110; ct state new jump firewall-check; }}
	chain filter-input {{
		type filter hook input priority 0
		ct state new jump nodeport-endpoints-check
		ct state new jump service-endpoints-check
	}}
	chain filter-forward {{
		type filter hook forward priority 0
		ct state new jump service-endpoints-check
		ct state new jump cluster-ips-check
	}}
	chain filter-output {{
		type filter hook output priority 0
		ct state new jump service-endpoints-check
		ct state new jump cluster-ips-check
	}}
	chain nat-prerouting {{ type nat hook prerouting priority -100; jump services; }}
	chain nat-output {{ type nat hook output priority -100; jump services; }}
	chain nat-postrouting {{ type nat hook postrouting priority 100; jump masquerading; }}
}}
"""


@dataclass(frozen=True)
class MadeService:
    """One Service. number: from 0."""

    number: int

    @property
    def name(self) -> str:
        return f"shop-{self.number % 97}/service-{self.number}"

    @property
    def address(self) -> str:
        """Its cluster IP."""
        return f"172.{16 + self.number // 65536}.{self.number // 256 % 256}.{self.number % 256}"

    @property
    def endpoints(self) -> list[str]:
        if self.number % EMPTY_EVERY == EMPTY_EVERY - 1:
            return []
        return [f"10.{e}.{self.number // 256}.{self.number % 256}" for e in range(ENDPOINTS)]

    @property
    def nodeport(self) -> int:
        """Its NodePort, 0 = none."""
        return NODEPORTS[self.number] if self.number < len(NODEPORTS) else 0

    @property
    def is_affine(self) -> bool:
        return self.number % AFFINE_EVERY == 0

    def chain(self, kind: str, endpoint: str = "") -> str:
        """The name of its chain of this kind ("service", "external", "endpoint")."""
        words = f"{self.name}/tcp/http" + (f"__{endpoint}/{POD_PORT}" if endpoint else "")
        return f"{kind}-{b32encode(hashlib.sha256(words.encode()).digest()).decode()[:8]}-{words}"


def text(services: int) -> str:
    """The ruleset. nft takes several times its memory, so a large one is loaded in parts(): this is for few Services."""
    return "".join(parts(services, services or 1))


def parts(services: int, size: int = 2000) -> Iterator[str]:
    """The ruleset in transactions of `size` Services."""
    yield _FIXED.format(node=NODE, pods=PODS, cluster_ips=CLUSTER_IPS, masquerade=_MASQUERADE)
    for begin in range(0, services, size):
        yield "".join(f"{line}\n" for line in _commands([MadeService(n) for n in range(begin, min(begin + size, services))]))


def _commands(made: list[MadeService]) -> Iterator[str]:
    for one in made:
        yield from _chains(one)
    for one in made:
        yield from _rules(one)
    for name, elements in _elements(made).items():
        if elements:
            yield f"add element ip kube-proxy {name} {{ {', '.join(elements)} }}"


def _chains(one: MadeService) -> Iterator[str]:
    if one.endpoints:
        yield f"add chain ip kube-proxy {one.chain('service')}"
        if one.nodeport:
            yield f"add chain ip kube-proxy {one.chain('external')}"
    if one.is_affine:
        for endpoint in one.endpoints:
            yield f"add chain ip kube-proxy {one.chain('endpoint', endpoint)}"
            timeout = "type ipv4_addr; flags dynamic,timeout; timeout 10800s;"
            yield f"add set ip kube-proxy {one.chain('affinity', endpoint)} {{ {timeout} }}"


def _rules(one: MadeService) -> Iterator[str]:
    if not one.endpoints:
        return
    service = f"add rule ip kube-proxy {one.chain('service')}"
    if one.is_affine:
        chains = [one.chain("endpoint", endpoint) for endpoint in one.endpoints]
        for endpoint, chain in zip(one.endpoints, chains, strict=True):
            yield f"{service} ip saddr @{one.chain('affinity', endpoint)} goto {chain}"
        ends = ", ".join(f"{n} : goto {chain}" for n, chain in enumerate(chains))
        yield f"{service} numgen random mod {len(chains)} vmap {{ {ends} }}"
        for endpoint, chain in zip(one.endpoints, chains, strict=True):
            yield f"add rule ip kube-proxy {chain} update @{one.chain('affinity', endpoint)} {{ ip saddr }}"
            yield f"add rule ip kube-proxy {chain} meta l4proto tcp dnat to {endpoint}:{POD_PORT}"
    else:
        ends = ", ".join(f"{n} : {endpoint} . {POD_PORT}" for n, endpoint in enumerate(one.endpoints))
        yield f"{service} meta l4proto tcp dnat ip to numgen random mod {len(one.endpoints)} map {{ {ends} }}"
    if one.nodeport:
        external = f"add rule ip kube-proxy {one.chain('external')}"
        yield f'{external} meta mark set meta mark or 0x4000 comment "masquerade"'
        yield f"{external} goto {one.chain('service')}"


def _elements(made: list[MadeService]) -> dict[str, list[str]]:
    full, empty = [one for one in made if one.endpoints], [one for one in made if not one.endpoints]
    return {
        "cluster-ips": [one.address for one in made],
        "service-ips": [f"{one.address} . tcp . {SERVICE_PORT} : goto {one.chain('service')}" for one in full],
        "no-endpoint-services": [
            f'{one.address} . tcp . {SERVICE_PORT} comment "{one.name}:http" : goto reject-chain' for one in empty
        ],
        "service-nodeports": [f"tcp . {one.nodeport} : goto {one.chain('external')}" for one in full if one.nodeport],
        "no-endpoint-nodeports": [
            f'tcp . {one.nodeport} comment "{one.name}:http" : goto reject-chain' for one in empty if one.nodeport
        ],
        "hairpin-connections": [f"{e} . {e} . tcp . {POD_PORT}" for one in full for e in one.endpoints],
    }
