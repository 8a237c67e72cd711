# SPDX-License-Identifier: Apache-2.0
"""The owner of each rule, computed from the API objects in another way than in the tracer: from the rules kube-proxy writes.

The objects give the names of all chains, and the addresses and ports of all Services; a rule is then read as a bare line.
Comments are not used, except for a Service that is gone from the API: then the name in the comment must give the chain's hash.
"""

from __future__ import annotations

import base64
import hashlib
import re
from typing import Any

from tests.support.nodes import Node
from tracer.model.rule import Rule, Ruleset

PROGRAMS = {
    "KUBE-SERVICES": "kube-proxy", "KUBE-NODEPORTS": "kube-proxy", "KUBE-EXTERNAL-SERVICES": "kube-proxy",
    "KUBE-FORWARD": "kube-proxy", "KUBE-PROXY-FIREWALL": "kube-proxy", "KUBE-POSTROUTING": "kube-proxy",
    "KUBE-MARK-MASQ": "kube-proxy", "KUBE-NODE-PORT": "kube-proxy", "KUBE-LOAD-BALANCER": "kube-proxy",
    "KUBE-MARK-DROP": "kubelet", "CNI-HOSTPORT-DNAT": "portmap", "CNI-HOSTPORT-MASQ": "portmap",
    "CNI-HOSTPORT-SETMARK": "portmap", "FLANNEL-POSTRTG": "flannel", "cali-POSTROUTING": "Calico",
    "cali-nat-outgoing": "Calico", "cali-fip-snat": "Calico",
}  # fmt: skip
SERVICE_CHAIN = re.compile(r"KUBE-(?:SVC|SEP|FW|XLB|SVL|EXT)-([A-Z2-7]{16})")

Truth = tuple[str, str]
"""Program, and the object for which it wrote the rule: "Service ns/name:port", "Pod ns/name", "" for none."""


def _sha(text: str, length: int) -> str:
    return base64.b32encode(hashlib.sha256(text.encode()).digest())[:length].decode()


class Expected:
    """The expected owners of one node's rules."""

    def __init__(self, node: Node) -> None:
        self.chains: dict[str, str] = {}
        self.nft_chains: dict[str, str] = {}
        self.ends: dict[tuple[str, str, str], str] = {}
        self.node_ports: dict[tuple[str, str], str] = {}
        self.pods = node.containers()
        for item in node.objects:
            if item["kind"] == "Service":
                self._service(item)
        for item in node.objects:
            if item["kind"] in ("Endpoints", "EndpointSlice"):
                self._endpoints(item)
        for container, pod in tuple(self.pods.items()):
            self.pods["CNI-DN-" + hashlib.sha512(b"azure" + container.encode()).hexdigest()[:21]] = pod

    def _service(self, item: dict[str, Any]) -> None:
        name = f"{item['metadata']['namespace']}/{item['metadata']['name']}"
        for port in item["spec"]["ports"]:
            label = name + (":" + port["name"] if port.get("name") else "")
            proto = port["protocol"].lower()
            self.chains[_sha(label + proto, 16)] = label
            source = f"{name}/{proto}/{port.get('name', '')}"
            for kind in ("service", "external", "local", "firewall"):
                self.nft_chains[f"{kind}-{_sha(source, 8)}-{source}"] = label
            self.ends[item["spec"]["clusterIP"], proto, str(port["port"])] = label
            if "nodePort" in port:
                self.node_ports[proto, str(port["nodePort"])] = label

    def _endpoints(self, item: dict[str, Any]) -> None:
        meta = item["metadata"]
        service = meta["labels"]["kubernetes.io/service-name"] if item["kind"] == "EndpointSlice" else meta["name"]
        subsets = item.get("subsets") or [item] if item["kind"] == "Endpoints" else [item]
        for subset in subsets:
            holders = subset.get("endpoints") or [{"addresses": [a["ip"]]} for a in subset.get("addresses") or ()]
            for ip in (a for h in holders for a in h["addresses"]):
                for port in subset.get("ports") or ():
                    name, proto = port.get("name") or "", port["protocol"].lower()
                    label = f"{meta['namespace']}/{service}" + (f":{name}" if name else "")
                    self.chains[_sha(f"{label}{proto}{ip}:{port['port']}", 16)] = label
                    source = f"{meta['namespace']}/{service}/{proto}/{name}__{ip}/{port['port']}"
                    for kind in ("endpoint", "affinity"):
                        self.nft_chains[f"{kind}-{_sha(source, 8)}-{source}"] = label

    def of_rule(self, rule: Rule, ruleset: Ruleset) -> Truth:
        if rule.table == "kube-proxy":
            label = self.nft_chains.get(rule.chain)
            return "kube-proxy", f"Service {label}" if label else ""
        if rule.table == "cni_hostport":
            return "portmap", f"Pod {self.pods[rule.comment]}" if rule.comment else ""
        for chain in (rule.chain, rule.target):
            found = SERVICE_CHAIN.fullmatch(chain)
            if found:
                return "kube-proxy", f"Service {self.chains.get(found[1]) or self._gone(found[1], rule, ruleset)}"
            if chain.startswith("CNI-DN-"):
                return "portmap", f"Pod {self.pods[chain]}"
        label = self._by_address(rule)
        if label:
            return "kube-proxy", f"Service {label}"
        return self._program(rule), ""

    def _gone(self, digest: str, rule: Rule, ruleset: Ruleset) -> str:
        """The name of a Service that the API no longer has."""
        for rules in ruleset.chains.values():
            for other in rules:
                for found in re.finditer(r"[a-z0-9-]+/[a-z0-9.-]+(?::[a-z0-9-]+)?", other.comment):
                    if _sha(found[0] + "tcp", 16) == digest:
                        return found[0]
        raise AssertionError(f"no object and no comment gives the owner of {rule.chain}")

    def _by_address(self, rule: Rule) -> str:
        if rule.chain not in ("KUBE-SERVICES", "KUBE-NODEPORTS", "KUBE-EXTERNAL-SERVICES"):
            return ""
        bare = re.sub(r'--comment "[^"]*"|comment "[^"]*"', "", rule.text)
        port = re.search(r"dport (\d+)", bare)
        proto = re.search(r"-p (\w+)|l4proto (\w+)|(tcp|udp) dport", bare)
        if not port or not proto:
            return ""
        address = re.search(r"(?:^| )(?:-d|ip daddr) (\d+\.\d+\.\d+\.\d+)", bare)
        name = next(g for g in proto.groups() if g)
        if address and not address[1].startswith("127."):
            return self.ends[address[1], name, port[1]]
        return self.node_ports[name, port[1]]

    def _program(self, rule: Rule) -> str:
        for chain in (rule.chain, rule.target):
            if chain == "KUBE-FIREWALL":
                return "kubelet" if rule.table == "filter" else "kube-proxy"
            if chain in PROGRAMS:
                return PROGRAMS[chain]
        # The only other rules of the lab are flannel's old ones, in POSTROUTING.
        assert rule.chain == "POSTROUTING", rule
        return "flannel"

    def of_element(self, key: tuple[str, ...]) -> str:
        """The label of the Service of a map element or of a virtual server."""
        if len(key) == 2:
            return self.node_ports[key[0], key[1]]
        return self.ends[key[0], key[1], key[2]] if key in self.ends else self.node_ports[key[1], key[2]]
