# SPDX-License-Identifier: Apache-2.0
"""kube-proxy in iptables mode, legacy and nft back end, 1.20 to 1.36.

A rule names its Service in its comment ("ns/name:port cluster IP") or in the hash of its chain's or its target's name; where
both do, they must agree. Rules without a comment (the last of KUBE-EXT-, all behind KUBE-SVC- in a large cluster) are reached
from rules that have one, or the API knows the hash, the cluster IP or the NodePort.
Source: kubernetes pkg/proxy/iptables/proxier.go of 1.20, 1.24 and 1.36.
"""

from __future__ import annotations

import re
from weakref import ref

from tracer.kube.catalog import ClusterView
from tracer.kube.chain_names import IPTABLES_CHAIN, service_hash
from tracer.kube.rule_text import destination, destination_ports, dnat_target, from_base, protocol
from tracer.model.kube import Owner, ServicePort
from tracer.model.rule import Rule, Ruleset

PROGRAM = "kube-proxy"

COMMON = frozenset({
    "KUBE-SERVICES", "KUBE-NODEPORTS", "KUBE-EXTERNAL-SERVICES", "KUBE-FORWARD", "KUBE-PROXY-FIREWALL", "KUBE-POSTROUTING",
    "KUBE-MARK-MASQ", "KUBE-PROXY-CANARY",
})  # fmt: skip
"""Chains that all Services share."""

FOR_SERVICES = frozenset({"KUBE-SERVICES", "KUBE-NODEPORTS", "KUBE-EXTERNAL-SERVICES", "KUBE-PROXY-FIREWALL"})
"""Shared chains with rules for single Services."""

MARKS = {"KUBE-POSTROUTING": "KUBE-MARK-MASQ", "KUBE-FORWARD": "KUBE-MARK-MASQ"}

_NAMED = re.compile(
    r"(?:(?:masquerade|pod|masquerade LOCAL|route LOCAL|other) traffic (?:for|to) |Balancing rule \d+ for )?"
    r"(?P<label>(?P<ns>[a-z0-9-]+)/(?P<name>[a-z0-9.-]+)(?::(?P<port>[a-z0-9-]+))?)"
    r"(?P<rest>$| (?:cluster IP|external IP|loadbalancer IP|LB IP|has no endpoints|has no local endpoints|-> \S+|"
    r"external destinations|traffic not accepted by|will be dropped by|health check node port|to service chain).*)"
)
_WAYS = {
    "cluster IP": "cluster IP",
    "external IP": "external IP",
    "loadbalancer IP": "load balancer IP",
    "LB IP": "load balancer IP",
}


def owner(rule: Rule, ruleset: Ruleset, cluster: ClusterView) -> Owner | None:
    if IPTABLES_CHAIN.fullmatch(rule.chain):
        return _of_service(rule, ruleset, cluster)
    if rule.chain in FOR_SERVICES:
        if rule.target in COMMON - {"KUBE-MARK-MASQ"}:
            return Owner("program", program=PROGRAM, detail=rule.chain, evidence="chain name")
        if rule.target in ("KUBE-NODE-PORT", "KUBE-LOAD-BALANCER") or "--match-set" in rule.text or 'match "set"' in rule.text:
            return None
        return _of_service(rule, ruleset, cluster)
    if rule.chain in COMMON and "--match-set" not in rule.text and 'match "set"' not in rule.text:
        return Owner("program", program=PROGRAM, detail=rule.chain, evidence="chain name")
    if from_base(rule, COMMON):
        return Owner("program", program=PROGRAM, detail=rule.target, evidence="chain it jumps to")
    return None


def service_in(comment: str) -> tuple[str, str, str] | None:
    """Returns (namespace, name, port name) from a comment of kube-proxy; None = names no Service."""
    found = _NAMED.fullmatch(comment)
    return (found["ns"], found["name"], found["port"] or "") if found else None


def _of_service(rule: Rule, ruleset: Ruleset, cluster: ClusterView) -> Owner:
    found = _by_hash(rule, cluster) or _by_comment(rule) or _by_ruleset(rule, ruleset) or _by_address(rule, cluster)
    if not found:
        return Owner("unknown", program=PROGRAM, evidence="chain name")
    port, evidence = found
    end = dnat_target(rule)
    target = cluster.leads_to(end[0]) if end else ""
    if not end and rule.chain.startswith("KUBE-SEP-"):
        behind = cluster.store.by_endpoint_chain.one(rule.chain[9:])
        target = cluster.leads_to(behind[1].address) if behind and rule.target == "DNAT" else ""
    return port.owner(detail(rule, port), evidence, PROGRAM, target)


Found = tuple[ServicePort, str]


def _by_hash(rule: Rule, cluster: ClusterView) -> Found | None:
    """Finds the Service by the hashes of the API's Services and endpoints."""
    for chain in (rule.chain, rule.target):
        match = IPTABLES_CHAIN.fullmatch(chain)
        if match and match[1] == "SEP":
            behind = cluster.store.by_endpoint_chain.one(match[2])
            if behind:
                return behind[0], "API: chain hash"
        elif match:
            port = cluster.store.by_chain.one(match[2])
            if port:
                return port, "API: chain hash"
    return None


def _by_comment(rule: Rule) -> Found | None:
    named = service_in(rule.comment)
    if not named:
        return None
    port = ServicePort(*named, protocol(rule) or "tcp", 0)
    for chain in (rule.chain, rule.target):
        match = IPTABLES_CHAIN.fullmatch(chain)
        if match and match[1] != "SEP":
            agree = [p for p in ("tcp", "udp", "sctp") if service_hash(port.label, p) == match[2]]
            return (ServicePort(*named, agree[0], 0), "comment, chain hash") if agree else None
    return port, "comment"


def _by_ruleset(rule: Rule, ruleset: Ruleset) -> Found | None:
    """Finds the Service by comments of other rules: in its chain, or of rules that lead to its chain."""
    services = _services_by_hash(ruleset)
    for chain in (rule.chain, rule.target):
        match = IPTABLES_CHAIN.fullmatch(chain)
        if match and match[2] in services:
            return services[match[2]], "comment of another rule"
    return None


_last: list[tuple[ref[Ruleset], dict[str, ServicePort]]] = []
"""The last rulesets, and the Services in their comments. A ruleset never changes, so each is parsed once."""


def _services_by_hash(ruleset: Ruleset) -> dict[str, ServicePort]:
    """Returns hash in a chain's name -> service port. Large clusters have comments only on rules that lead to a Service."""
    for known, services in _last:
        if known() is ruleset:
            return services
    services, ends = {}, []
    for rules in ruleset.chains.values():
        for rule in rules:
            inside, onward = IPTABLES_CHAIN.fullmatch(rule.chain), IPTABLES_CHAIN.fullmatch(rule.target)
            found = _by_comment(rule) if rule.comment and (inside or onward) else None
            if found:
                services |= {match[2]: found[0] for match in (inside, onward) if match}
            if inside and onward and onward[1] == "SEP":
                ends.append((inside[2], onward[2]))
    services |= {end: services[service] for service, end in ends if service in services}
    _last.insert(0, (ref(ruleset), services))
    del _last[8:]
    return services


def _by_address(rule: Rule, cluster: ClusterView) -> Found | None:
    ports, proto = destination_ports(rule), protocol(rule)
    if rule.chain not in FOR_SERVICES or len(ports) != 1 or not proto:
        return None
    address = destination(rule)
    if address and not address.startswith("127."):
        found = cluster.store.by_address.one((address, ports[0], proto))
        return (found[0], "API: address and port") if found else None
    if rule.table == "filter" and rule.chain == "KUBE-NODEPORTS":
        health = cluster.store.by_health_port.all(ports[0])
        return (health[0], "API: health check port") if len({(p.namespace, p.name) for p in health}) == 1 else None
    port = cluster.store.by_node_port.one((ports[0], proto))
    return (port, "API: NodePort") if port else None


def detail(rule: Rule, port: ServicePort) -> str:
    """Returns the part of the Service that the rule is for: "cluster IP", "NodePort 30285, no endpoints"."""
    named = _NAMED.fullmatch(rule.comment)
    rest = named["rest"].strip() if named else ""
    said = [way for words, way in _WAYS.items() if rest.startswith(words)]
    ports = destination_ports(rule)
    if not said and ports and rule.chain in FOR_SERVICES:
        if rule.table == "filter" and rule.chain == "KUBE-NODEPORTS":
            said = [f"health check port {ports[0]}"]
        elif not destination(rule) or destination(rule).startswith("127."):
            said = [f"NodePort {ports[0]}"]
    if rest.startswith("has no "):
        said.append(rest.removeprefix("has "))
    if rest.startswith(("traffic not accepted", "will be dropped")):
        said.append("outside loadBalancerSourceRanges")
    return ", ".join(dict.fromkeys(said))
