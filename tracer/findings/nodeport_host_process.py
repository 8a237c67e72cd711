# SPDX-License-Identifier: Apache-2.0
"""A process of the node listens on the port of a NodePort: the rules act first, so the process gets no requests.

Without endpoints kube-proxy's REJECT refuses the connection. With endpoints its DNAT sends it to a pod. Before 1.24
kube-proxy itself holds the NodePort's socket; that is normal and no finding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from tracer.findings.context import FindingContext
from tracer.findings.proofs import decision_proof, packet_proof
from tracer.model.finding import Finding, FindingEvidence
from tracer.model.hop import DecidingHop, IpvsNatHop, IpvsRefusalHop, NatHop, OwnedHop, RewriteHop, decision_of
from tracer.model.kube import Owner
from tracer.model.namespace_name import is_host
from tracer.model.netfilter import Verdict
from tracer.model.packet import Packet
from tracer.node.node import ListeningSocket
from tracer.node.node_questions import IsKubeProxy, Listener, Setting
from tracer.packets.path_memo import PathMemo
from tracer.rules import operator_commands
from tracer.util.endpoint_format import format_endpoint
from tracer.util.questions import Known, NotAsked, value_of

PORTS, RESERVED = Setting("net/ipv4/ip_local_port_range"), Setting("net/ipv4/ip_local_reserved_ports")
LISTENER, IS_KUBE_PROXY = Listener(), IsKubeProxy()
ASKS = (PORTS, RESERVED, LISTENER, IS_KUBE_PROXY)
NOT_KNOWN = FindingEvidence("process", "whether that is kube-proxy, which may hold the port, is not recorded", "capture")
REFUSES = "which has no endpoints: the Service's rule refuses every request"
REFUSED_BY_IPVS = "which has no endpoints here: IPVS refuses every request"


def find(packet: Packet, context: FindingContext) -> Finding | None:
    for at, address, port in _ASKED.of(packet):
        listener = value_of(context.ask(LISTENER, address, port, packet.protocol.lower()))
        if not listener:
            continue
        by_proxy, hop = context.ask(IS_KUBE_PROXY, listener.pid), packet.hops[at]
        assert isinstance(hop, (DecidingHop, RewriteHop)) and hop.owner
        if isinstance(by_proxy, NotAsked) or not by_proxy.value:
            found = _finding(packet, hop, hop.owner, listener, context)
            is_known = isinstance(by_proxy, Known)
            return found if is_known else replace(found, certain=False, proofs=(*found.proofs, NOT_KNOWN))
    return None


class _Asked(NamedTuple):
    """A hop where a Service's rule acted on a request for its NodePort.

    Attributes:
        at: Place of the hop.
        address: The address that the request was sent to.
        port: The NodePort.
    """

    at: int
    address: str
    port: int


def _asked(packet: Packet) -> tuple[_Asked, ...]:
    found = []
    for at, hop in enumerate(packet.hops):
        if isinstance(hop, (DecidingHop, RewriteHop)) and (port := decided_node_port(hop)):
            ends = hop.nat.before if isinstance(hop, RewriteHop) else packet.endpoints
            found += [_Asked(at, ends.dst, port)] if ends.dport == port else []
    return tuple(found)


_ASKED = PathMemo(_asked)


def decided_node_port(hop: OwnedHop) -> int:
    """Returns the NodePort for which a Service's rule acted on the packet at this hop; 0 = none."""
    owner = hop.owner
    if hop.clone or not is_host(hop.netns) or not owner or owner.kind != "Service":
        return 0
    acted = hop.nat.kind == "DNAT" if isinstance(hop, RewriteHop) else hop.verdict is Verdict.REJECT
    return named_node_port(owner) if acted and _is_decided_here(hop) else 0


def named_node_port(owner: Owner) -> int:
    """The NodePort that an owner's text names; 0 = none."""
    word, _, number = owner.detail.partition(",")[0].partition(" ")
    return int(number) if word == "NodePort" and number.isdigit() else 0


def _is_decided_here(hop: OwnedHop) -> bool:
    """Whether this packet was decided on, not an earlier one of its connection, and the deciding rule is known."""
    if isinstance(hop, (IpvsNatHop, IpvsRefusalHop)):
        return hop.decision.chosen != "earlier"
    return decision_of(hop) is not None and not (isinstance(hop, NatHop) and hop.from_conntrack)


def _finding(packet: Packet, hop: OwnedHop, owner: Owner, listener: ListeningSocket, context: FindingContext) -> Finding:
    ends = [e for e in context.cluster.store.endpoints.all((owner.label, packet.protocol.lower())) if e.ready]
    # If there are several endpoints, the next request may go to another one.
    to = ends[0].text or format_endpoint(ends[0].address, ends[0].port) if len(ends) == 1 else "one of the Service's pods"
    if isinstance(hop, RewriteHop):
        fate = f"and {'IPVS' if isinstance(hop, IpvsNatHop) else 'its rule'} sends every request to {to}"
    else:
        fate = REFUSED_BY_IPVS if isinstance(hop, IpvsRefusalHop) else REFUSES
    shown = [packet_proof(packet), decision_proof(hop, owner.text)]
    return conflict(owner, listener, packet.protocol.lower(), fate, shown, context)


def conflict(
    owner: Owner, listener: ListeningSocket, protocol: str, fate: str, shown: Sequence[FindingEvidence], context: FindingContext
) -> Finding:  # fmt: skip
    """Makes the finding that a process listens on the NodePort of a Service.

    Args:
        owner: The Service.
        listener: The listening socket.
        protocol: The protocol in lower case.
        fate: What the Service's rule does, as a clause.
        shown: The evidence for that.
        context: The context of the findings.
    """
    port, service = listener.port, owner.label
    who = f"{listener.text} listens" if listener.pid else "A process listens (it cannot be seen from here)"
    names = f"-n {owner.namespace} {owner.name}"
    return Finding(
        name="",
        key=(port, protocol, service),
        cause=(
            f"{who} on port {port} of this node, but {protocol} {port} is also the NodePort of Service {service},"
            f" {fate}, and the process never sees any of them."
        ),
        proofs=(
            *shown,
            FindingEvidence("process", f"{listener.text} listens on {protocol} {listener.place} of the node", "/proc/net"),
            *_settings(port, context),
        ),
        check=(
            f"`{operator_commands.sockets(port, protocol)}` shows the process,"
            f" `kubectl get service {names} -o yaml | grep nodePort` the nodePort."
            f' kube-proxy before 1.24 logs can\'t open "nodePort for {service}" and installs the rules all the same;'
            " later versions do not look."
        ),
        cure=(
            f"Give the Service another nodePort (`kubectl edit service {names}`) or the process another port. To prevent it:"
            f" a ResourceQuota on services.nodeports, and the NodePort range in {RESERVED.name.replace('/', '.')}."
        ),
        # The process that holds the socket must be known: it may be kube-proxy.
        certain=listener.pid > 0,
        subject=owner.reference,
    )


def _settings(port: int, context: FindingContext) -> list[FindingEvidence]:
    """The evidence that the kernel may also assign this port to a client socket of the node."""
    ports, reserved = value_of(context.ask(PORTS)), value_of(context.ask(RESERVED))
    if ports is None or reserved is None:
        return []
    low, _, high = ports.partition(" ")
    if not (low.isdigit() and high.isdigit() and int(low) <= port <= int(high)) or is_within(port, reserved):
        return []
    text = (
        f"ip_local_port_range is {low}-{high} and {port} is not reserved: any outgoing connection of the node may get this"
        f" port too"
    )
    return [FindingEvidence("setting", text, "/proc/sys")]


def is_within(port: int, ranges: str) -> bool:
    """Whether a list such as "8080,30000-32767" contains the port."""
    for each in filter(None, ranges.split(",")):
        low, _, high = each.partition("-")
        if low.isdigit() and int(low) <= port <= int(high or low):
            return True
    return False
