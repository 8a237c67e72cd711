# SPDX-License-Identifier: Apache-2.0
"""The rules for a Service differ between nodes: one node sends new connections to an endpoint that the API no longer has, or
does not translate them at all, while another node sends them to the endpoints that the API has.

kube-proxy of each node writes the rules by itself, and a moment later than the API changes. So a difference counts only when it
has lasted, and when both nodes showed it during that time.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from tracer.cluster_findings import service_views
from tracer.cluster_findings.cluster_context import ClusterContext, ServiceKey, ServiceUse, Suspicion
from tracer.cluster_findings.service_views import CLUSTER_IP, EndpointChoice
from tracer.findings.proofs import decision_proof, packet_proof
from tracer.joining.pair_clocks import UNKNOWN_ERROR_NS
from tracer.kube import missing_endpoints
from tracer.model.finding import Finding, FindingEvidence, likely_cause
from tracer.model.hop import DecidingHop, owner_of
from tracer.model.joined_packet import JoinedPacket, NodeView
from tracer.model.kube import Endpoint, ServicePort
from tracer.model.namespace_name import is_host
from tracer.model.netfilter import REFUSALS
from tracer.model.packet import Outcome, Packet
from tracer.util.endpoint_format import format_endpoint

LASTS_NS = 30_000_000_000
"""Time for which nodes must have differed, ns: kube-proxy writes changed rules after 1 s, in a large cluster after 10 s."""
SHORT_NS = 5_000_000_000
"""Time after which a difference is said to be likely, ns."""
FEWEST_BARE = 2
"""Number of new connections that a node must have left without a translation."""
MOST_ERROR_NS = 500_000_000
"""Largest error of a clock with which two nodes are compared, ns."""
_LEAVES = (Outcome.FORWARDED, Outcome.SENT)


class _Other(NamedTuple):
    """A node that sends new connections only to endpoints that the API has.

    Attributes:
        node: Its name.
        use: What its rules did.
    """

    node: str
    use: ServiceUse


def suspect(joined: JoinedPacket, at: int, context: ClusterContext) -> Suspicion | None:
    """Notes what the rules of a node did with a new connection. Returns a suspicion if it may be wrong."""
    view = joined.views[at]
    packet, node = view.packet, view.node
    if not service_views.is_new(packet) or not packet.complete or view.offset is None:
        return None
    time = view.time
    choice = service_views.choice_of(packet, context.nodes)
    if choice:
        service = choice.service
        context.note_translation(node, service_views.key_of(service, packet.family), choice.address, choice.port, time)
        if not _may_be_gone(choice, packet, context):
            return None
    else:
        bare = _bare_service(packet, context)
        if not bare:
            return None
        service = bare
        is_sure = service_views.has_run_nat(packet) or _is_refused(packet, service)
        if not context.note_bare(node, service_views.key_of(service, packet.family), time, is_sure):
            return None
    context.endpoints.ask(service.namespace, service.name)
    return Suspicion(view, time, _error(view))


def find(suspicion: Suspicion, context: ClusterContext) -> Finding | None:
    packet = suspicion.view.packet
    if suspicion.error > MOST_ERROR_NS:
        return None
    if choice := service_views.choice_of(packet, context.nodes):
        return _gone_endpoint(suspicion, choice, context)
    service = _bare_service(packet, context)
    return _no_translation(suspicion, service, context) if service else None


def _error(view: NodeView) -> int:
    return view.error if view.offset is not None else UNKNOWN_ERROR_NS


def _may_be_gone(choice: EndpointChoice, packet: Packet, context: ClusterContext) -> bool:
    """Whether the API, as far as it was read, does not have a chosen endpoint, or had it only when the run began."""
    service = choice.service
    history = context.endpoints.history(service.namespace, service.name)
    ends = history.of(service, packet.family) if history else context.nodes.endpoints(service)
    return all((end.address, end.port) != (choice.address, choice.port) for end in ends)


def _bare_service(packet: Packet, context: ClusterContext) -> ServicePort | None:
    """The Service port with the cluster IP to which a packet went on as it was, or was refused; None = not so."""
    ends = packet.endpoints
    found = context.nodes.service_at(ends.dst, ends.dport, packet.protocol.lower())
    if not found or found[1] != CLUSTER_IP or packet.untracked or service_views.is_translated(packet):
        return None
    service = found[0]
    if _is_refused(packet, service):
        return service
    if any(service_views.is_of(owner_of(hop), service) for hop in packet.hops):
        return None  # a rule of the Service decided, as for policy Local
    if packet.flow and packet.flow.state != "NEW":
        return None
    in_host = any(is_host(hop.netns) and hop.hook and not hop.clone for hop in packet.hops)
    return service if in_host and packet.outcome in _LEAVES else None


def _is_refused(packet: Packet, service: ServicePort) -> bool:
    """Whether a rule refused the packet because the Service has no endpoints at all, for the rules of this node."""
    return any(
        isinstance(hop, DecidingHop)
        and not hop.clone
        and hop.verdict in REFUSALS
        and service_views.is_of(hop.owner, service)
        and missing_endpoints.fate_in(hop.owner) == missing_endpoints.NONE
        for hop in packet.hops
    )


def _gone_endpoint(suspicion: Suspicion, choice: EndpointChoice, context: ClusterContext) -> Finding | None:
    """The finding about an endpoint that the API does not have."""
    view, service = suspicion.view, choice.service
    packet, node = view.packet, view.node
    history = context.endpoints.history(service.namespace, service.name)
    if not history or history.asked < suspicion.time + suspicion.error:
        return None  # the API was not asked since then, so the endpoint may be a new one
    absent = history.absent_since(service, choice.address, choice.port)
    ends = history.of(service, packet.family)
    if absent is None or not ends:
        return None
    lasted = suspicion.time - suspicion.error - absent
    if lasted < SHORT_NS:
        return None
    key = service_views.key_of(service, packet.family)
    other = _up_to_date(node, key, ends, absent, context)
    doubt = ""
    if lasted < LASTS_NS:
        doubt = f"The API has been without it for {lasted / 1e9:.0f} s, so the rules may only be a little late."
    elif not other:
        doubt = "No other node was seen to choose only endpoints that the API has, so the API may be wrong."
    place = format_endpoint(choice.address, choice.port)
    text = (
        f"Node {node} sends new connections to Service {service.label} to {place}, which is no endpoint of it any more: its"
        " rules are older than the endpoints of the API."
    )
    proofs = [
        packet_proof(packet),
        decision_proof(choice.hop, choice.hop.owner.text if choice.hop.owner else ""),
        FindingEvidence(
            "object",
            f"{place} was no endpoint of Service {service.label}, ready or not, from {lasted / 1e9:.0f} s before the packet"
            f" until after it; it has {_listed(ends)}",
            "Kubernetes API",
        ),
    ]
    if other:
        proofs.append(_other_proof(other, service))
    return Finding(
        name="",
        key=("endpoint", node, *key, choice.address, choice.port),
        cause=likely_cause(text, doubt),
        proofs=tuple(proofs),
        check=_check(node, service, packet),
        cure=_cure(node),
        certain=not doubt,
    )


def _up_to_date(node: str, key: ServiceKey, ends: tuple[Endpoint, ...], since: int, context: ClusterContext) -> _Other | None:
    """Another node that has chosen endpoints since a time, ns, all of which the API has."""
    known = {(end.address, end.port) for end in ends}
    for other in context.nodes.names:
        use = context.services.get((other, key))
        if other == node or not use:
            continue
        lately = [each for each in use.chosen if each.time >= since]
        if lately and all((each.address, each.port) in known for each in lately):
            return _Other(other, use)
    return None


def _no_translation(suspicion: Suspicion, service: ServicePort, context: ClusterContext) -> Finding | None:
    """The finding about new connections that a node does not translate."""
    view = suspicion.view
    packet, node = view.packet, view.node
    key = service_views.key_of(service, packet.family)
    use = context.services.get((node, key), ServiceUse())
    if use.bare < FEWEST_BARE:
        return None
    found = _translating(node, key, use, context)
    if not found:
        return None
    other, lasted = found
    history = context.endpoints.history(service.namespace, service.name)
    ends = history.of(service, packet.family) if history and history.asked >= suspicion.time + suspicion.error else ()
    if history and not any(end.ready for end in history.of(service, packet.family)):
        return None  # the node is right, and the other one is late
    doubt = ""
    if lasted < LASTS_NS:
        doubt = f"Both were seen for {max(lasted, 0) / 1e9:.0f} s only, so one of them may be a little late."
    elif not use.is_sure:
        doubt = "It was not seen that its NAT rules ran."
    what = "refuses them because it has no endpoints" if _is_refused(packet, service) else "does not translate them"
    to = format_endpoint(packet.endpoints.dst, packet.endpoints.dport)
    text = (
        f"Node {node} has other rules than node {other.node} for new connections to {CLUSTER_IP} {to} of Service"
        f" {service.label}: node {other.node} sends them to endpoints, and node {node} {what}."
    )
    proofs = [
        packet_proof(packet),
        FindingEvidence(
            "counter",
            f"node {node} did so with {use.bare} new connections in {(use.bare_until - use.bare_since) / 1e9:.0f} s, and"
            " translated none meanwhile",
            "observed",
        ),
        _other_proof(other, service),
    ]
    if ends:
        proofs.append(FindingEvidence("object", f"Service {service.label} has {_listed(ends)}", "Kubernetes API"))
    return Finding(
        name="",
        key=("rules", node, *key),
        cause=likely_cause(text, doubt),
        proofs=tuple(proofs),
        check=_check(node, service, packet),
        cure=_cure(node),
        certain=not doubt,
    )


def _translating(node: str, key: ServiceKey, use: ServiceUse, context: ClusterContext) -> tuple[_Other, int] | None:
    """Another node that translates new connections, and for how long both were seen to differ, ns: both before and after."""
    found: list[tuple[int, _Other]] = []
    for other in context.nodes.names:
        theirs = context.services.get((other, key))
        if other != node and theirs and theirs.since:
            lasted = min(use.bare_until, theirs.until) - max(use.bare_since, theirs.since)
            found.append((lasted, _Other(other, theirs)))
    lasted, best = max(found, key=lambda each: each[0], default=(-1, None))
    return (best, lasted) if best and lasted >= 0 else None


def _other_proof(other: _Other, service: ServicePort) -> FindingEvidence:
    chosen = ", ".join(format_endpoint(each.address, each.port) for each in other.use.chosen[:3])
    text = f"node {other.node} sent new connections to Service {service.label} to {chosen} in this time"
    return FindingEvidence("rule", text, "observed")


def _listed(ends: Iterable[Endpoint]) -> str:
    names = [format_endpoint(end.address, end.port) for end in ends]
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{', '.join(names[:3])}{more}"


def _check(node: str, service: ServicePort, packet: Packet) -> str:
    """What to look at. The address is that of a known Service, so a command can have it."""
    slices = service_views.slices_command(service)
    save = "ip6tables-save" if packet.family == "IPv6" else "iptables-save"
    of_api = f" {slices} has the endpoints of the API." if slices else ""
    return (
        f"On node {node}: `{save} -t nat`, `nft list table {'ip6' if packet.family == 'IPv6' else 'ip'} kube-proxy` or"
        f" `ipvsadm -Ln` has the rules of the Service, and the log of kube-proxy says since when it has synchronised"
        f" nothing.{of_api}"
    )


def _cure(node: str) -> str:
    return (
        f"Let kube-proxy of node {node} run and reach the API server, or restart it. If the node has no kube-proxy on purpose,"
        " keep pods away from it that ask Services."
    )
