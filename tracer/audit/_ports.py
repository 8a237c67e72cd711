# SPDX-License-Identifier: Apache-2.0
"""Claims on ports of this node: NodePorts of Services and hostPorts of pods.

They are read from rules. In ipvs mode rules name no port, so NodePorts are read from the API.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from tracer.audit.state import NodeState
from tracer.findings.nodeport_host_process import REFUSES
from tracer.kube.missing_endpoints import NONE_HERE
from tracer.kube.owners.kube_proxy_nftables import owner_of_element
from tracer.kube.rule_text import destination, destination_ports, dnat_target, protocol
from tracer.model.finding import FindingEvidence
from tracer.model.kube import Owner
from tracer.model.rule import Rule, Ruleset

_PORT = re.compile(r"NodePort (\d+)")


@dataclass(frozen=True)
class PortClaim:
    """A port of the node and its owner.

    Attributes:
        port: The port.
        protocol: "tcp", "udp", "sctp".
        owner: Its owner.
        fate: What happens to a request, as a clause.
        shown: Evidence of the claim.
        rule: The rule that makes the claim, None = an element of a map, or the API.
        ruleset: The rules that it belongs to, None = no rule.
        address: The address claimed, "" = every address of the node.
        target: Of a hostPort, the pod's address; "" = not known.
    """

    port: int
    protocol: str
    owner: Owner
    fate: str
    shown: FindingEvidence
    rule: Rule | None = None
    ruleset: Ruleset | None = None
    address: str = ""
    target: str = ""


def node_ports(state: NodeState) -> Iterator[PortClaim]:
    """The NodePorts, each once. The claim that shows a port does not imply that it gets the requests.

    In ipvs mode they are taken from the API; rules left by another mode are reported by another check.
    """
    seen = set()
    for claim in (*(_by_api(state) if state.is_ipvs_mode else ()), *_by_rules(state), *_by_elements(state)):
        if (claim.port, claim.protocol) not in seen:
            seen.add((claim.port, claim.protocol))
            yield claim


def _by_rules(state: NodeState) -> Iterator[PortClaim]:
    for rule, ruleset in state.rules("KUBE-NODEPORTS", "KUBE-EXTERNAL-SERVICES"):
        # The second rule of a NodePort, for 127.0.0.0/8, repeats the first one.
        if rule.target == "KUBE-MARK-MASQ" or destination(rule):
            continue
        owner = state.owner(rule, ruleset)
        found = _PORT.match(owner.detail) if owner.kind == "Service" else None
        if found:
            fate = REFUSES if rule.target == "REJECT" else _fate(owner, rule.target)
            shown = state.proof(rule, ruleset, owner.text)
            yield PortClaim(int(found[1]), protocol(rule) or "tcp", owner, fate, shown, rule, ruleset)


def _fate(owner: Owner, target: str) -> str:
    if target == "DROP" or NONE_HERE in owner.detail:
        return "which has no local endpoints: the Service's rule drops every request"
    return "and its rule sends every request to one of the Service's pods"


def _by_elements(state: NodeState) -> Iterator[PortClaim]:
    maps = state.installed.nft.maps if state.installed.nft else {}
    for (family, table, name), found in maps.items():
        if table != "kube-proxy" or not name.endswith("nodeports") or (family, table, name) not in state.maps:
            continue
        for element in found.elements.values():
            owner = owner_of_element(element.text, state.cluster)
            port = _PORT.match(owner.detail) if owner else None
            if owner and port:
                fate = REFUSES if "reject" in element.verdict else _fate(owner, element.verdict.upper())
                shown = FindingEvidence("rule", f"element of map {family} {table} {name}: {element.text}", "nft")
                yield PortClaim(int(port[1]), element.key[0], owner, fate, shown)


def _by_api(state: NodeState) -> Iterator[PortClaim]:
    store = state.cluster.store
    for port in store.by_node_port.values():
        ends = [e for e in store.endpoints.all((port.label, port.protocol)) if e.ready]
        sends = "and IPVS sends every request to one of the Service's pods"
        fate = sends if ends else "which has no endpoints: IPVS refuses every request"
        shown = FindingEvidence("object", f"NodePort {port.node_port} is Service {port.label}'s", "Kubernetes API")
        owner = port.owner(f"NodePort {port.node_port}", "API: NodePort")
        yield PortClaim(port.node_port, port.protocol, owner, fate, shown)


def host_ports(state: NodeState) -> Iterator[PortClaim]:
    """The hostPorts with rules of portmap, in the order in which a packet meets the rules."""
    for rule, ruleset in state.rules("CNI-HOSTPORT-DNAT", "hostip_hostports", "hostports"):
        owner = state.owner(rule, ruleset)
        if owner.program != "portmap" or not (rule.target.startswith("CNI-DN-") or rule.table == "cni_hostport"):
            continue
        end = dnat_target(rule) or next(
            (e for r in ruleset.chain(rule.family, rule.table, rule.target) for e in [dnat_target(r)] if e), ("", 0)
        )
        for port in destination_ports(rule):
            shown = state.proof(rule, ruleset, owner.text)
            whom = f"to {end[0]}" if end[0] else "to the pod"
            fate, address = f"and portmap's rule sends every request {whom}", destination(rule)
            yield PortClaim(port, protocol(rule) or "tcp", owner, fate, shown, rule, ruleset, address, end[0])
