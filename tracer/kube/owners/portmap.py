# SPDX-License-Identifier: Apache-2.0
"""portmap, the CNI plugin of hostPorts: chains CNI-* (iptables), table cni_hostport (nftables, 1.6 and later).

Its rules have a container id: that of the pod's sandbox. The API does not know it, but libcni's result cache does. Without the
cache, the pod is the one with the DNAT's target address and, in the API, the same host port.
Source: containernetworking/plugins, plugins/meta/portmap/portmap_iptables.go, portmap_nftables.go.
"""

from __future__ import annotations

import re

from tracer.kube.catalog import ClusterView
from tracer.kube.rule_text import destination_ports, dnat_target, from_base, protocol, siblings
from tracer.model.kube import Owner
from tracer.model.rule import Rule, Ruleset

PROGRAM = "portmap"

OWN = frozenset({"CNI-HOSTPORT-DNAT", "CNI-HOSTPORT-SETMARK", "CNI-HOSTPORT-MASQ", "CNI-HOSTPORT-SNAT"})
FOR_POD = "CNI-DN-"
FOR_POD_SNAT = "CNI-SN-"
TABLE = "cni_hostport"

MARKS = {"CNI-HOSTPORT-MASQ": "CNI-HOSTPORT-SETMARK"}

_ID = re.compile(r'id: "([^"]+)"|^([0-9a-f]{64})$')


def owner(rule: Rule, ruleset: Ruleset, cluster: ClusterView) -> Owner | None:
    if rule.table == TABLE:
        if _container(rule):
            return _of_pod(rule, ruleset, cluster)
        return Owner("program", program=PROGRAM, detail=f"chain {rule.chain}", evidence="table name")
    if rule.chain.startswith((FOR_POD, FOR_POD_SNAT)) or (
        rule.chain in OWN and rule.target.startswith((FOR_POD, FOR_POD_SNAT))
    ):
        return _of_pod(rule, ruleset, cluster)
    if rule.chain in OWN:
        return Owner("program", program=PROGRAM, detail=rule.chain, evidence="chain name")
    if from_base(rule, OWN):
        return Owner("program", program=PROGRAM, detail=rule.target, evidence="chain it jumps to")
    return None


def _container(rule: Rule) -> str:
    """Returns the id in the rule's comment."""
    found = _ID.search(rule.comment)
    return (found[1] or found[2]) if found else ""


def _of_pod(rule: Rule, ruleset: Ruleset, cluster: ClusterView) -> Owner:
    chain = rule.chain if rule.chain.startswith((FOR_POD, FOR_POD_SNAT)) else rule.target
    rules = _together(rule, ruleset, chain)
    ports = next((p for p in map(destination_ports, (rule, *rules)) if p), ())
    detail = f"hostPort {', '.join(map(str, ports))}" if ports else "hostPort"
    container = next(filter(None, map(_container, (rule, *rules))), "")
    sandbox = (cluster.sandboxes.of(container) if container else None) or cluster.sandboxes.of_chain(chain)
    if sandbox:
        return Owner("Pod", sandbox.namespace, sandbox.name, "", PROGRAM, detail, "", "", "CNI result cache")
    end = next((e for e in map(dnat_target, (rule, *rules)) if e), None)
    proto = next(filter(None, map(protocol, (rule, *rules))), "tcp")
    for port in ports if end else ():
        pods = [p for p in cluster.store.by_host_port.all((port, proto)) if end and end[0] in p.addresses]
        if len(pods) == 1:
            return pods[0].owner(detail, "API: pod address and hostPort", PROGRAM)
    return Owner("unknown", program=PROGRAM, detail=detail, evidence="chain name")


def _together(rule: Rule, ruleset: Ruleset, chain: str) -> tuple[Rule, ...]:
    """Returns the rules for the same container: in iptables by its chain and the jump to it, in nftables by its id."""
    if rule.table == TABLE:
        every = (r for c in ("hostports", "hostip_hostports", "masquerading") for r in siblings(rule, ruleset, c))
        return tuple(r for r in every if r.comment == rule.comment)
    leading = (r for r in siblings(rule, ruleset, "CNI-HOSTPORT-DNAT") if r.target == chain)
    return (*leading, *siblings(rule, ruleset, chain))
