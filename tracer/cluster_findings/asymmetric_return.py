# SPDX-License-Identifier: Apache-2.0
"""A node translates a request and passes it on to another node without masquerading it, and the answer leaves that node by
another way: the node that translated the request never sees the answer, so nothing translates it back.

A request that was only routed is none of this: an answer may take another way then.
"""

from __future__ import annotations

from tracer.cluster_findings import service_views
from tracer.cluster_findings.cluster_context import AnswerWay, ClusterContext, ForwardedRequest, Suspicion
from tracer.joining import wire_headers
from tracer.joining.wire_headers import WireHeader
from tracer.model.endpoints import Endpoints
from tracer.model.finding import Finding, FindingEvidence, likely_cause
from tracer.model.hop import RewriteHop
from tracer.model.joined_packet import Certainty, JoinedPacket, JoinKey, NodeView
from tracer.model.namespace_name import is_host
from tracer.model.packet import Packet
from tracer.util.endpoint_format import format_endpoint

FEWEST_ANSWERS = 2
"""Number of answers that must have gone another way: a single one may only be lost."""
MOST_ERROR_NS = 500_000_000
"""Largest error of a clock with which two nodes are compared, ns."""


def suspect(joined: JoinedPacket, at: int, context: ClusterContext) -> Suspicion | None:
    """Notes requests that one node translated and another one got. Returns a suspicion if the answer went elsewhere."""
    view = joined.views[at]
    if not joined.complete or not view.packet.complete:
        return None
    if at and at == len(joined.views) - 1:
        _note_request(joined, at, context)
    if not context.forwarded:
        return None
    headers, protocol = wire_headers.headers_of(view.packet), view.packet.protocol
    if headers.arrival:
        _note_answer(view.node, protocol, headers.arrival.endpoints, context)
    left = headers.departure
    request = context.forwarded.get((protocol, left.endpoints)) if left else None
    if not left or not request or request.target != view.node or not wire_headers.departed_from_host(view.packet):
        return None
    later = _later_nodes(joined, at)
    if later is None or view.node in later:
        return None  # it is not certain where it came, or it came back and left again
    if request.node in later:
        context.returned[AnswerWay(view.node, left.iface, request.node)] = left.time
        return None
    if request.has_returned or view.offset is None:
        return None
    time = left.time + view.offset
    return Suspicion(view, time, view.error, (request.node, view.node), later)


def find(suspicion: Suspicion, context: ClusterContext) -> Finding | None:
    view, packet = suspicion.view, suspicion.view.packet
    left = wire_headers.departed_from_host(packet)
    request = context.forwarded.get((packet.protocol, left.endpoints)) if left else None
    if not left or not request or request.target != view.node or request.has_returned or suspicion.error > MOST_ERROR_NS:
        return None
    ends, translator, time, error = left.endpoints, request.node, suspicion.time, suspicion.error
    if not context.covers(translator, packet, ends):
        return None
    if context.seen.is_like(translator, packet, left, time, error) or context.seen.has_ended(
        view.node, packet, left, time - error
    ):
        return None
    way = AnswerWay(view.node, left.iface, translator)
    context.missed[way] += 1
    return _finding(suspicion, left, request, _doubt(suspicion, left, request, way, context))


def _note_request(joined: JoinedPacket, at: int, context: ClusterContext) -> None:
    """Notes a packet that came to the node of view `at`, its last one, from a node that translated its destination alone."""
    view = joined.views[at]
    came = wire_headers.headers_of(view.packet).arrival
    translator = next((each for each in joined.views[:at] if _translates_destination(each.packet)), None)
    if not came or not translator or translator.node == view.node or not _is_passed_on(translator, came.endpoints, context):
        return
    sure = {
        (link.earlier, link.later)
        for link in joined.links
        if link.certainty is not Certainty.AMBIGUOUS and link.key is not JoinKey.SEQUENCE
    }
    if not all((each, each + 1) in sure for each in range(at)):
        return
    key = (view.packet.protocol, came.endpoints.reversed)
    before = context.forwarded.get(key)
    if not before and not service_views.is_new(translator.packet):
        return  # an older connection: its first answers may have come back
    has_returned = before is not None and before.node == translator.node and before.has_returned
    from_translator = wire_headers.headers_of(translator.packet).arrival is None
    context.forwarded[key] = ForwardedRequest(translator.node, view.node, came.iface, from_translator, has_returned)


def _note_answer(node: str, protocol: str, ends: Endpoints, context: ClusterContext) -> None:
    """Notes a packet that may be an answer at the node that translated the request, whatever it was joined with.

    ends: The addresses with which it came there.
    """
    request = context.forwarded.get((protocol, ends))
    if request and request.node == node and not request.has_returned:
        context.forwarded[protocol, ends] = request._replace(has_returned=True)


def _translates_destination(packet: Packet) -> bool:
    return packet.complete and any(
        isinstance(hop, RewriteHop) and hop.nat.kind == "DNAT" and not hop.clone and is_host(hop.netns) for hop in packet.hops
    )


def _is_passed_on(view: NodeView, ends: Endpoints, context: ClusterContext) -> bool:
    """Whether a packet came to the node that translated it from elsewhere, and left with the address of its client."""
    packet, came = view.packet, wire_headers.headers_of(view.packet).arrival
    # What a program of this node sends has one of its addresses; a container's address may be one that no object has.
    if (came is None and is_host(packet.netns)) or packet.endpoints.src != ends.src:
        return False
    owner = context.nodes.owner(ends.src)
    # An answer to a client on this node has its address as the destination: it cannot go elsewhere.
    return (owner is None or owner.node != view.node) and context.nodes.network_owner(ends.src) != view.node


def _later_nodes(joined: JoinedPacket, at: int) -> tuple[str, ...] | None:
    """The nodes to which a packet came after view `at`; None = that is not certain."""
    links = [link for link in joined.links if link.earlier == at]
    if any(link.certainty is Certainty.AMBIGUOUS or link.later is None for link in links):
        return None
    return tuple(view.node for view in joined.views[at + 1 :]) if links else ()


def _doubt(suspicion: Suspicion, left: WireHeader, request: ForwardedRequest, way: AnswerWay, context: ClusterContext) -> str:
    """Why the answer may have been on its way to the node that translated the request, a sentence; "" = it was not."""
    if context.returned.evicted:
        return "Ways of earlier answers are no longer known."
    if way in context.returned:
        return f"Other answers that left by {left.iface} did come to node {request.node}."
    if left.iface == request.iface and not suspicion.seen_at:
        return f"It left by {left.iface}, by which the requests come, so it may only be lost."
    if request.from_translator and not suspicion.seen_at:
        return f"The client is on node {request.node}, so the answers may only be lost on their way to that node."
    if context.missed[way] < FEWEST_ANSWERS:
        return "Only one answer was seen."
    ends = left.endpoints
    if context.is_selected_by_name and context.last_shown(request.node, ends.dst, ends.dport) < suspicion.time:
        return f"The filter of node {request.node} may have changed: it showed nothing of this client since then."
    return ""


def _finding(suspicion: Suspicion, left: WireHeader, request: ForwardedRequest, doubt: str) -> Finding:
    node, packet, translator = suspicion.view.node, suspicion.view.packet, request.node
    ends = left.endpoints
    what = f"{packet.protocol} {packet.tcp_flags}".strip()
    answer = f"{format_endpoint(ends.src, ends.sport)} -> {format_endpoint(ends.dst, ends.dport)}"
    text = (
        f"Answers leave node {node} by {left.iface} and never come to node {translator}, which had translated the requests and"
        " sent them on with the address of the client: nothing translates the answers back, and the client does not know them."
    )
    proofs = [
        FindingEvidence("packet", f"{answer}, {what}: left node {node} by {left.iface}", "observed"),
        FindingEvidence(
            "packet",
            f"the request came from node {translator} by {request.iface}, translated there, its source was {ends.dst}",
            "observed",
        ),
        FindingEvidence("packet", f"node {translator} was traced then, lost no events, and shows no such packet", "observed"),
    ]
    if suspicion.seen_at:
        proofs.append(FindingEvidence("packet", f"the answer came to node {suspicion.seen_at[-1]}", "observed"))
    return Finding(
        name="",
        key=(node, left.iface, request.iface, translator, packet.family),
        cause=likely_cause(text, doubt),
        proofs=tuple(proofs),
        check=_check(node, translator, ends, packet),
        cure=(
            f"Let node {translator} masquerade what it sends to other nodes (kube-proxy does so with externalTrafficPolicy"
            " Cluster; a stale RETURN or another rule before it can prevent that), or ask only nodes with an endpoint, by"
            " policy Local. If answers are meant to go straight to the client, the pod's node has to translate the requests."
        ),
        certain=not doubt,
    )


def _check(node: str, translator: str, ends: Endpoints, packet: Packet) -> str:
    tool, option = ("ip -6", "ip6") if packet.family == "IPv6" else ("ip", "ip")
    save = "ip6tables-save" if packet.family == "IPv6" else "iptables-save"
    return (
        f"On node {node}: `{tool} route get {ends.dst}` is the way of the answers. On node {translator}: `{save} -t nat` or"
        f" `nft list chain {option} kube-proxy nat-postrouting` has the rules for masquerading, and `conntrack -L --orig-src"
        f" {ends.dst}` shows entries without an answer (UNREPLIED, SYN_SENT). A router or firewall that drops such answers,"
        " and `sysctl net.ipv4.conf.all.rp_filter` = 1 on the way, hide them from the client, too."
    )
