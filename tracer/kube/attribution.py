# SPDX-License-Identifier: Apache-2.0
"""Sets the owners of a packet's rules, rewrites and endpoints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tracer.kube.catalog import ClusterView
from tracer.kube.endpoint_owners import both, end_of, owner_of_rewrite
from tracer.kube.fwmarks import EMPTY, MarkTracker
from tracer.kube.missing_endpoints import without_real_server
from tracer.kube.owners.kube_proxy_ipvs import owner_of_virtual_server
from tracer.model.hop import (
    Hop,
    IpvsNatHop,
    IpvsRefusalHop,
    NatHop,
    RewriteHop,
    RuleHop,
    SocketHop,
    decision_of,
    is_from_conntrack,
    nat_of,
    owner_of,
    verdict_of,
)
from tracer.model.kube import UNKNOWN, Owner
from tracer.model.namespace_name import HOST, NO_NETNS, Netns, is_host
from tracer.model.netfilter import REFUSALS, Hook, Verdict
from tracer.model.packet import Packet
from tracer.model.prediction import PredictedPath
from tracer.util.endpoint_format import format_endpoint
from tracer.util.frozen import evolve

_NAT_VERDICTS = ("DNAT", "SNAT", "MASQUERADE", "REDIRECT")


def attribute(packet: Packet, cluster: ClusterView) -> Packet:
    """The packet with the owners of its hops and endpoints."""
    hops = tuple(_hops(packet, cluster))
    src_owner, dst_owner = _end_owners(packet, hops, cluster)
    return evolve(packet, hops=hops, src_owner=src_owner, dst_owner=dst_owner)


def attribute_path(predicted: PredictedPath, cluster: ClusterView) -> PredictedPath:
    """The predicted path with the owners of its packet."""
    return replace(predicted, packet=attribute(predicted.packet, cluster))


def _hops(packet: Packet, cluster: ClusterView) -> list[Hop]:
    """The packet's hops with their owners."""
    protocol = packet.protocol.lower()
    ends = packet.endpoints
    asked = cluster.service_at(ends.dst, ends.dport, protocol)
    service = asked[0].owner(asked[1]) if asked else None
    marks = MarkTracker(cluster, service)
    hops: list[Hop] = []
    for hop in packet.hops:
        owner = None
        if isinstance(hop, (IpvsNatHop, IpvsRefusalHop)) and hop.decision.virtual:
            server = hop.decision
            owner = owner_of_virtual_server(server.virtual, server.virtual_port, server.protocol, cluster)
            if verdict_of(hop) is Verdict.REJECT:
                owner = without_real_server(owner, server.protocol, cluster)
        if isinstance(hop, (RuleHop, NatHop)) and hop.rule_trace and not hop.clone:
            # A translation from conntrack was decided by an earlier packet, with the marks of that packet.
            of = MarkTracker(cluster, service) if is_from_conntrack(hop) else marks
            owners = of.table(hop.rule_trace.hits, hop.rule_trace.ruleset or EMPTY)
            decision = hop.rule_trace.decision
            # A rule that dropped a malformed packet in a match (hotdrop) did not act for its owner.
            owner = owners[-1] if owners and decision and not decision.hotdrop else None
        hops.append(evolve(hop, owner=_with_service_detail(owner, hop, packet, cluster)) if owner else hop)
    for at, hop in enumerate(hops):
        if isinstance(hop, RewriteHop) and not hop.nat.kind.startswith("reverse"):
            owner = hop.owner or _decided_nearby(hops, hop, at) or owner_of_rewrite(hop.nat, protocol, cluster)
            if owner:
                hops[at] = evolve(hop, owner=_with_target(owner, hop.nat.after.dst, cluster))
    return hops


def _end_owners(packet: Packet, hops: Sequence[Hop], cluster: ClusterView) -> tuple[Owner, Owner]:
    """The owners of the packet's source and destination.

    Args:
        packet: The packet.
        hops: Its hops with their owners.
        cluster: The cluster.
    """
    protocol, ends = packet.protocol.lower(), packet.endpoints
    src_owner = end_of(ends.src, ends.sport, protocol, cluster)
    dst_owner = end_of(ends.dst, ends.dport, protocol, cluster)
    if dst_owner.kind == "Pod" and dst_owner.detail.startswith("hostPort"):
        dst_owner = _host_port(packet, hops, dst_owner, cluster)
    if src_owner.kind == "Service" and is_host(packet.netns) and hops and hops[0].hook is Hook.OUTPUT:
        # A node that connects to a cluster IP on its own kube-ipvs0 uses that address as the source, too.
        src_owner = Owner("Node", name=cluster.store.node, detail=f"from {ends.src}", evidence="the node sent it")
    if not is_host(packet.netns) and ends.dst.startswith(("127.", "::1")):
        # Every namespace has its own loopback.
        src_owner = dst_owner = UNKNOWN
    if src_owner == UNKNOWN:
        src_owner = _in_namespace(packet.netns)
    if dst_owner == UNKNOWN:
        taken = next((h.netns for h in reversed(hops) if isinstance(h, SocketHop) and not h.clone), NO_NETNS)
        dst_owner = _by_connection(packet, cluster) or _in_namespace(taken)
    return src_owner, dst_owner


def _host_port(packet: Packet, hops: Sequence[Hop], pod: Owner, cluster: ClusterView) -> Owner:
    """Returns the pod with this hostPort, or the actual receiver if the packet went elsewhere."""
    asked = packet.endpoints.dst, packet.endpoints.dport
    for hop in hops:
        owner, nat = owner_of(hop), nat_of(hop)
        translated = nat and nat.kind == "DNAT" and (nat.before.dst, nat.before.dport) == asked
        if hop.clone or not (translated or verdict_of(hop) in REFUSALS):
            continue
        if owner and owner.kind == "Service":
            return both(owner.detail.partition(",")[0] or f"port {asked[1]}", owner.label, pod, cluster, "rule that acted")
        at = cluster.pod_at(nat.after.dst) if nat else None
        if nat and translated and (not at or at[:2] != (pod.namespace, pod.name)):
            to = cluster.leads_to(nat.after.dst) or format_endpoint(nat.after.dst, nat.after.dport)
            return replace(UNKNOWN, target=to, evidence="its rewrite")
    return pod


def _in_namespace(netns: Netns) -> Owner:
    """The owner of an address in another namespace than the node's: an unknown pod."""
    if netns in (NO_NETNS, HOST):
        return UNKNOWN
    return replace(UNKNOWN, detail=f"in network namespace {netns}", evidence="network namespace")


def _by_connection(packet: Packet, cluster: ClusterView) -> Owner | None:
    """The owner of an unknown address from conntrack: the endpoint that answers in its place."""
    flow = packet.flow
    if not flow or flow.is_reply or (flow.reply.src, flow.reply.sport) == (flow.orig.dst, flow.orig.dport):
        return None
    answers = cluster.leads_to(flow.reply.src) or f"{flow.reply.src}:{flow.reply.sport}"
    return replace(UNKNOWN, target=answers, evidence="conntrack")


def _decided_nearby(hops: list[Hop], hop: RewriteHop, at: int) -> Owner | None:
    """The owner of the rule that made this rewrite: the deciding rule of the same hook's nat table or chain."""
    for other in (*reversed(hops[:at]), *hops[at + 1 :]):
        if (other.hook, other.netns, other.clone) != (hop.hook, hop.netns, hop.clone):
            continue
        owner, decision = owner_of(other), decision_of(other)
        if owner and decision:
            done = {decision.verdict, decision.rule.target.upper() if decision.rule else ""}
            if any(_same(verdict, hop.nat.kind) for verdict in done.intersection(_NAT_VERDICTS)):
                return owner
    return None


def _with_service_detail(owner: Owner, hop: Hop, packet: Packet, cluster: ClusterView) -> Owner:
    """Adds to a Service how the packet addressed it (cluster IP, NodePort), if the rules on its path did not show it."""
    decision, nat = decision_of(hop), nat_of(hop)
    if owner.kind != "Service" or owner.detail or not decision or hop.hook not in (Hook.PREROUTING, Hook.OUTPUT):
        return owner
    before = nat.before if nat else packet.endpoints
    at = cluster.service_at(before.dst, before.dport, packet.protocol.lower())
    if at and at[0].label == owner.label:
        return evolve(owner, detail=at[1])
    by_port = any(place.chain == "KUBE-NODEPORTS" for place in decision.path)
    return replace(owner, detail=f"NodePort {before.dport}") if by_port else owner


def _with_target(owner: Owner, address: str, cluster: ClusterView) -> Owner:
    """Adds to a Service its target from the rewrite, because a rule with several targets does not show it."""
    if owner.kind != "Service" or owner.target:
        return owner
    return replace(owner, target=cluster.leads_to(address))


def _same(verdict: str, kind: str) -> bool:
    """Whether a rule of this verdict makes a rewrite of this kind."""
    return {"REDIRECT": "DNAT"}.get(verdict, verdict) == kind or {verdict, kind} == {"SNAT", "MASQUERADE"}
