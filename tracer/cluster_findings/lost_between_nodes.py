# SPDX-License-Identifier: Apache-2.0
"""A packet left a node for another one, and never came there, although that node shows each packet that comes: it was lost
between the two.
"""

from __future__ import annotations

import re

from tracer.cluster_findings.cluster_context import ClusterContext, UnansweredDeparture, Undecided
from tracer.model.finding import Finding, FindingEvidence, likely_cause
from tracer.util.endpoint_format import format_endpoint

MOST_ERROR_NS = 500_000_000
"""Largest error of a clock with which two nodes are compared, ns."""
CLOCKS = "the clocks of the nodes are not known well enough"
NOT_SELECTED = "the filter of the run may not select it on the other node"
FILTER_CHANGES = "the filter may have changed on the other node: it showed nothing of this end since then"
SOMETHING_CAME = "something that may be the packet came to the other node"
POD_SHOWN_NS = 60_000_000_000
"""Time before the loss in which a node must have shown a pod: another one may have its address later, elsewhere."""
ANSWERED = "no packet of this way was seen to come, and its destination sends packets"
TUNNELS = (
    (re.compile(r"(flannel|vxlan|cilium_vxlan|vx)[.\w-]*"), "VXLAN", "udp port 8472 or udp port 4789"),
    (re.compile(r"(gen|cilium_gen)[.\w-]*"), "Geneve", "udp port 6081"),
    (re.compile(r"(tunl|ipip)[.\w-]*"), "IPIP", "ip proto 4"),
    (re.compile(r"(wg|cilium_wg|wireguard|kube-wg)[.\w-]*"), "WireGuard", "udp port 51820 or udp port 51871"),
)
"""Names of tunnels' interfaces, what they are, and a pcap-filter expression for their outer packets."""
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]*")


def find(departure: UnansweredDeparture, context: ClusterContext) -> Finding | Undecided | None:
    node, packet, left, owner, time, error = departure
    target = owner.node
    if error > MOST_ERROR_NS:
        return Undecided(CLOCKS)
    if not context.covers(target, packet, left.endpoints):
        return Undecided(NOT_SELECTED)
    if context.seen.has_ended(node, packet, left, time - error):
        return None
    if context.seen.is_like(target, packet, left, time, error):
        return Undecided(SOMETHING_CAME)
    ends = left.endpoints
    if context.ways.get(departure.way) is None:
        sources = ((node, ends.dst, ends.dport), (target, ends.dst, ends.dport))
        if any(context.last_source(*source) >= time for source in sources):
            return Undecided(ANSWERED)
    elif context.is_selected_by_name:
        shown = (context.last_shown(target, ends.dst, ends.dport), context.last_shown(target, ends.src, ends.sport))
        if max(shown) < time:
            return Undecided(FILTER_CHANGES)
    return _finding(departure, context)


def _doubt(departure: UnansweredDeparture, context: ClusterContext) -> str:
    """Why the packet may have gone elsewhere, or may have come without being shown, a sentence; "" = it cannot."""
    target, dst = departure.owner.node, departure.header.endpoints.dst
    if context.ways.get(departure.way) is None:
        iface = departure.header.iface
        kind = "for a pod there" if departure.owner.is_pod else "for the node itself"
        return f"No packet {kind} that left by {iface} was seen to come, so node {target} may not show such packets."
    if departure.owner.is_pod and context.last_shown(target, dst) < departure.time - POD_SHOWN_NS:
        return f"Node {target} has not shown {dst} lately, so the pod may have gone."
    return ""


def _finding(departure: UnansweredDeparture, context: ClusterContext) -> Finding:
    node, packet, left, owner, _, _ = departure
    target, use, doubt = owner.node, context.ways.get(departure.way), _doubt(departure, context)
    ends, iface = left.endpoints, left.iface
    to = format_endpoint(ends.dst, ends.dport)
    what = f"{packet.protocol} {packet.tcp_flags}".strip()
    ident = f", IP identification {packet.ident}" if packet.ident else ""
    header = f"{format_endpoint(ends.src, ends.sport)} -> {to}, {what}, {packet.length} bytes{ident}"
    proofs = [
        FindingEvidence("packet", f"{header}: left node {node} by {iface}", "observed"),
        FindingEvidence("address", f"{ends.dst} is an address of {owner.text}" + _on(owner.text, target), "Kubernetes API"),
        FindingEvidence("packet", f"node {target} was traced then, lost no events, and shows no such packet", "observed"),
    ]
    cause = (
        f"Packets from node {node} to node {target} are lost between the two nodes: they left by {iface}, and never came to"
        f" netfilter of node {target}."
    )
    if use:
        proofs.append(FindingEvidence("counter", f"other such packets that left by {iface} came to node {target}", "observed"))
    if use and packet.length > use.longest:
        text = f"packets of at most {use.longest} bytes came; this one has {packet.length}"
        proofs.append(FindingEvidence("counter", text, "observed"))
    return Finding(
        name="",
        key=(*departure.way, ends.dst, ends.dport) if doubt else (*departure.way,),
        cause=likely_cause(cause, doubt),
        proofs=tuple(proofs),
        check=_check(departure),
        cure=(
            "Let the network between the nodes (firewalls, security groups, filters of switches) pass these packets"
            f"{_outer(iface)}. If only long ones are lost, give the pods' interfaces an MTU that leaves room for"
            " the tunnel's header."
        ),
        certain=not doubt,
    )


def _on(text: str, node: str) -> str:
    return "" if text == f"node {node}" else f" on node {node}"


def _tunnel(iface: str) -> tuple[str, str] | None:
    """What kind of tunnel an interface is, by its name, and an expression for its outer packets."""
    return next(((name, expression) for pattern, name, expression in TUNNELS if pattern.fullmatch(iface)), None)


def _outer(iface: str) -> str:
    tunnel = _tunnel(iface)
    return f", which are inside packets of {tunnel[0]} there" if tunnel else ""


def _check(departure: UnansweredDeparture) -> str:
    """What to look at. Names in a command are only those that a shell takes as they are."""
    node, packet, left, owner, _, _ = departure
    iface = f" dev {left.iface}" if _PLAIN.fullmatch(left.iface) else ""
    tunnel = _tunnel(left.iface)
    expression = tunnel[1] if tunnel else _expression(departure)
    neighbours = "ip -6 neigh" if packet.family == "IPv6" else "ip neigh"
    return (
        f"On node {node}: `ip -s link show{iface}` counts what the interface dropped, and `{neighbours} show{iface}` has a"
        f" neighbour that is FAILED if the next hop does not answer. On node {owner.node}: `ip -s -s link show` counts what the"
        " network card dropped, `nstat -asz IpInHdrErrors TcpInCsumErrors UdpInCsumErrors` packets with wrong checksums,"
        f" `ip -s xfrm state` those that IPsec refused, and `bpftool net` lists programs that may take packets before netfilter"
        f" does; `tcpdump -ni any '{expression}'` on both nodes shows whether the"
        " packets are on the wire."
    )


def _expression(departure: UnansweredDeparture) -> str:
    ends = departure.header.endpoints
    return f"src host {ends.src} and dst host {ends.dst}"
