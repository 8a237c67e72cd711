# SPDX-License-Identifier: Apache-2.0
"""kube-proxy in nftables mode, 1.29 to 1.36: table `kube-proxy`, and nothing else.

The name of a Service's chain contains the Service's name. The rules that look a packet up in a map are the same for all
Services: for them the matching element shows the Service, by its comment ("ns/name:port") or by the chain it leads to.
Source: kubernetes pkg/proxy/nftables/proxier.go.
"""

from __future__ import annotations

import re

from tracer.kube.catalog import ClusterView
from tracer.kube.chain_names import NftChainName, read_nftables_name
from tracer.kube.missing_endpoints import NONE, NONE_HERE
from tracer.kube.owners.kube_proxy_iptables import service_in
from tracer.kube.rule_text import dnat_target
from tracer.model.kube import Owner, ServicePort
from tracer.model.rule import Rule, Ruleset

PROGRAM = "kube-proxy"

MARKS = {"masquerading": "mark-for-masquerade"}

_LEADS = re.compile(r"(?:goto|jump) (\S+)")
_SAYS = re.compile(r'comment "([^"]*)"')
_NODE_PORT = re.compile(r"^(tcp|udp|sctp) \. (\d+)\b")
_SERVICE_IP = re.compile(r"^([0-9a-f.:]+) \. (tcp|udp|sctp) \. (\d+)\b")


def owner(rule: Rule, ruleset: Ruleset, cluster: ClusterView) -> Owner | None:
    if rule.table != "kube-proxy":
        return None
    named = read_nftables_name(rule.chain)
    if not named:
        return Owner("program", program=PROGRAM, detail=f"chain {rule.chain}", evidence="table name")
    end = dnat_target(rule)
    return _service(named, cluster, target=cluster.leads_to(end[0]) if end else "")


def owner_of_element(text: str, cluster: ClusterView) -> Owner | None:
    """Returns the owner of a matching element of a verdict map; None if the element names no Service.

    text: the element as nft prints it, `tcp . 30285 : goto external-...`.
    """
    node_port, service_ip = _NODE_PORT.search(text), _SERVICE_IP.search(text)
    detail = f"NodePort {node_port[2]}" if node_port else ""
    if service_ip:
        at = cluster.store.by_address.one((service_ip[1], int(service_ip[3]), service_ip[2]))
        detail = at[1] if at else f"{service_ip[1]}:{service_ip[3]}"
    for chain in _LEADS.findall(text):
        named = read_nftables_name(chain.rstrip(","))
        if named:
            return _service(named, cluster, detail)
    fate = NONE if "goto reject-chain" in text else NONE_HERE if text.endswith(": drop") else ""
    said = _SAYS.search(text)
    label = service_in(said[1]) if said else None
    if label:
        proto = node_port[1] if node_port else service_ip[2] if service_ip else "tcp"
        found, evidence = ServicePort(*label, proto, 0), "comment of the map element"
    else:
        by_key = _by_key(node_port, service_ip, cluster)
        if not by_key:
            return None
        found, evidence = by_key, "API: key of the map element"
    return found.owner(", ".join(p for p in (detail, fate) if p), evidence, PROGRAM)


def _by_key(node_port: re.Match[str] | None, service_ip: re.Match[str] | None, cluster: ClusterView) -> ServicePort | None:
    """Finds the Service by the address or NodePort in the element's key: netlink gives elements without comments."""
    if node_port:
        return cluster.store.by_node_port.one((int(node_port[2]), node_port[1]))
    found = service_ip and cluster.store.by_address.one((service_ip[1], int(service_ip[3]), service_ip[2]))
    return found[0] if found else None


def _service(named: NftChainName, cluster: ClusterView, detail: str = "", target: str = "") -> Owner:
    if named.address and not target:
        target = cluster.leads_to(named.address)
    owned = (named.namespace, named.name, named.port_name)
    return Owner("Service", *owned, PROGRAM, detail, target, "", "chain name")
