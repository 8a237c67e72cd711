# SPDX-License-Identifier: Apache-2.0
"""A Service has externalTrafficPolicy Local, and its pod gets a client's request with another source address all the same.

The policy keeps the client's address: kube-proxy does not masquerade such requests. A rule of the CNI plugin, of ip-masq-agent
or of the administrator in POSTROUTING may, if it does not except connections that come in from outside.
"""

from __future__ import annotations

from tracer.findings.context import FindingContext
from tracer.findings.proofs import rewriting_rule, rule_proof
from tracer.model.finding import Finding, FindingEvidence
from tracer.model.hop import Nat, RewriteHop, alike_of, is_from_conntrack
from tracer.model.kube import Owner, ServicePort
from tracer.model.namespace_name import is_host
from tracer.model.netfilter import Hook
from tracer.model.packet import Packet
from tracer.model.rule import RuleHit
from tracer.rules import operator_commands
from tracer.util.endpoint_format import format_endpoint

_SOURCE_KINDS = frozenset({"MASQUERADE", "SNAT"})


def find(packet: Packet, context: FindingContext) -> Finding | None:
    rewrites = [h for h in alike_of(packet.hops, RewriteHop) if is_host(h.netns) and not is_from_conntrack(h)]
    dnat = next((h for h in rewrites if h.nat.kind == "DNAT"), None)
    port = _local_port(dnat.nat, packet, context) if dnat else None
    if not dnat or not port or not _is_outside(dnat.nat.before.src, context):
        return None
    behind = rewrites[rewrites.index(dnat) + 1 :]
    hidden = next((h for h in behind if h.nat.kind in _SOURCE_KINDS and h.hook is Hook.POSTROUTING), None)
    if not hidden or hidden.nat.before.src != dnat.nat.before.src or hidden.nat.after.src == hidden.nat.before.src:
        return None
    hit = rewriting_rule(packet, hidden, _SOURCE_KINDS)
    return _finding(port, hidden.nat, hit, hidden.owner or Owner("unknown"), context)


def _local_port(nat: Nat, packet: Packet, context: FindingContext) -> ServicePort | None:
    """Returns the port of the Service with policy Local to which a request from outside was sent.

    The policy is about NodePorts, external IPs and load balancer IPs, not about cluster IPs.
    """
    found = context.cluster.service_at(nat.before.dst, nat.before.dport, packet.protocol.lower())
    return found[0] if found and found[0].local and found[1] != "cluster IP" else None


def _is_outside(address: str, context: FindingContext) -> bool:
    """Whether it is the address of no node and of no pod: kube-proxy itself masquerades requests of nodes."""
    cluster = context.cluster
    own = cluster.is_local(address) or cluster.store.by_node_ip.all(address) or cluster.store.node_of_network(address)
    return not (own or cluster.pod_at(address) or cluster.store.by_pod_ip.all(address) or cluster.sandboxes.at(address))


def _finding(port: ServicePort, nat: Nat, hit: RuleHit | None, owner: Owner, context: FindingContext) -> Finding:
    before, after, rule = nat.before, nat.after, hit.rule if hit else None
    pod = context.cluster.leads_to(before.dst) or format_endpoint(before.dst, before.dport)
    who = f"a rule of {owner.text}" if owner.known else "a rule of an unknown program"
    rewrite = f"{before.src} became {after.src} on the way to {format_endpoint(before.dst, before.dport)}"
    proofs = [
        FindingEvidence("packet", rewrite, "observed"),
        *([rule_proof(hit, owner.text)] if hit else []),
        FindingEvidence("object", f"Service {port.label} has externalTrafficPolicy Local", "Kubernetes API"),
    ]
    shown = (
        f"`{operator_commands.shows(rule)}` shows the rule; its counter grows with each new connection."
        if rule
        else f"`kubectl get service -n {port.namespace} {port.name} -o yaml | grep externalTrafficPolicy` shows the policy."
    )
    return Finding(
        name="",
        key=(port.label, port.protocol, rule.table if rule else "", rule.chain if rule else "", rule.number if rule else 0),
        cause=(
            f"Service {port.label} has externalTrafficPolicy Local so that its pods see their clients' addresses, but {who}"
            f" rewrites the source of requests from outside: {pod} sees {after.src} instead of {before.src}."
        ),
        proofs=tuple(proofs),
        check=shown,
        cure=_cure(owner, rule is not None),
        subject=port.reference,
    )


def _cure(owner: Owner, is_rule_known: bool) -> str:
    if owner.program == "ip-masq-agent":
        return "Add the pods' networks to nonMasqueradeCIDRs in ip-masq-agent's ConfigMap: it excepts requests by destination."
    if owner.program == "kube-proxy":
        return "Find the rule that sets kube-proxy's masquerade mark on such requests, or the option masqueradeAll; remove it."
    limited = "so that it masquerades only what pods send (source: the pods' network), not what is sent to them"
    if owner.kind == "administrator" and is_rule_known:
        return f"Change the rule {limited}."
    return f"Change the configuration of the program that writes the rule, {limited}."
