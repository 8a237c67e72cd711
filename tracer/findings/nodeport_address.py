# SPDX-License-Identifier: Apache-2.0
"""A SYN to a NodePort at an address of the node at which kube-proxy's nftables mode does not answer NodePorts.

The iptables mode answers at every address of the node, also at 127.0.0.1. The nftables mode answers at the addresses of its
set nodeport-ips: by default the primary one of each family (nodePortAddresses: primary), and never at a loopback address. At
any other address no rule acts, and the node's own TCP refuses the SYN. Source: kubernetes pkg/proxy/nftables/proxier.go.
"""

from __future__ import annotations

from ipaddress import ip_address

from tracer.findings.context import FindingContext
from tracer.findings.proofs import existing_rule_proof, packet_proof
from tracer.model.finding import Finding, FindingEvidence
from tracer.model.hop import ChainHop, RewriteHop, alike_of
from tracer.model.kube import ServicePort
from tracer.model.namespace_name import is_host
from tracer.model.packet import Outcome, Packet
from tracer.model.rule import Rule
from tracer.node.node_questions import NodePortAddresses
from tracer.util.endpoint_format import format_endpoint
from tracer.util.questions import value_of

ADDRESSES = NodePortAddresses()
ASKS = (ADDRESSES,)

_LOOKUP, _BY_SET = "vmap @service-nodeports", "daddr @nodeport-ips"


def find(packet: Packet, context: FindingContext) -> Finding | None:
    ends, cluster = packet.endpoints, context.cluster
    if packet.outcome is not Outcome.REFUSED or not packet.complete or not cluster.is_local(ends.dst):
        return None
    if any(is_host(hop.netns) for hop in alike_of(packet.hops, RewriteHop)):
        return None
    port = cluster.store.by_node_port.one((ends.dport, packet.protocol.lower()))
    rule = _lookup(packet) if port else None
    if not port or not rule:
        return None
    ready = [e for e in cluster.store.endpoints.all((port.label, port.protocol)) if e.ready]
    return _finding(packet, port, rule, context) if ready else None


def _lookup(packet: Packet) -> Rule | None:
    """Returns the rule that looks NodePorts up, in the rules that kube-proxy's nat chain ran for the packet on the node."""
    for hop in alike_of(packet.hops, ChainHop):
        family, _, table = hop.table.partition(" ")
        trace = hop.rule_trace
        if (
            table != "kube-proxy"
            or not is_host(hop.netns)
            or not hop.chain.startswith("nat-")
            or not trace
            or not trace.ruleset
        ):
            continue
        if trace.undecided:
            return None
        found = [rule for rule in trace.ruleset.chain(family, table, "services") if _LOOKUP in rule.text]
        if found:
            return found[0]
    return None


def _finding(packet: Packet, port: ServicePort, rule: Rule, context: FindingContext) -> Finding | None:
    ends, family = packet.endpoints, ":" in packet.endpoints.dst
    is_loopback = ip_address(ends.dst).is_loopback
    answering: tuple[str, ...] = ()
    if _BY_SET in rule.text:
        known = value_of(context.ask(ADDRESSES))
        answering = tuple(a for a in known or () if (":" in a) == family)
        if ends.dst in answering:
            return None
        certain, where = bool(answering), " and ".join(answering) or "the addresses of its set nodeport-ips only"
    elif is_loopback:
        certain, where = True, "every address of the node but loopback ones"
    else:
        return None
    node = context.cluster.store.this_node()
    other = answering or tuple(a for a in (node.addresses if node else ()) if (":" in a) == family)
    proofs = [packet_proof(packet), existing_rule_proof(rule, "derived", "kube-proxy, did not match")]
    if answering:
        proofs.append(FindingEvidence("setting", f"the set nodeport-ips has {', '.join(answering)}", "nft"))
    set_family = "ip6" if family else "ip"
    never = " It answers at no loopback address, whatever is set." if is_loopback else ""
    instead = f"Use {format_endpoint(other[0], port.node_port)}" if other else "Use an address of the node at which it answers"
    return Finding(
        name="",
        key=(port.label, port.protocol, ends.dst),
        cause=(
            f"Nothing answers NodePort {port.node_port} of Service {port.label} at {ends.dst}, an address of this node:"
            f" kube-proxy is in nftables mode and answers NodePorts at {where}; no rule acted, and the node itself refused"
            f" the connection."
        ),
        proofs=tuple(proofs),
        check=f"`nft list set {set_family} kube-proxy nodeport-ips` shows the addresses at which NodePorts are answered.",
        cure=(
            f"{instead}, or set nodePortAddresses in kube-proxy's configuration file (--nodeport-addresses) to the networks"
            f" of the addresses that must answer, and restart kube-proxy.{never}"
        ),
        certain=certain,
        subject=port.reference,
    )
