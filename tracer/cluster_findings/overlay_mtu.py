# SPDX-License-Identifier: Apache-2.0
"""Long packets from one node to another do not get through, and short ones of the same way do: the way carries less than the
interfaces of the senders allow, as when a tunnel's header was forgotten.

It is certain when a node drops a segment because it is too long, and the sender sends the same one again much later. What only
the lengths of lost packets show is a guess, and is said when the run ends.
"""

from __future__ import annotations

from collections.abc import Iterator

from tracer.cluster_findings.cluster_context import CarriedLengths, ClusterContext, LostLengths, NodePair, TooLong
from tracer.findings.mtu import FUNCTIONS, REASON
from tracer.model.finding import Finding, FindingEvidence, likely_cause
from tracer.model.hop import RewriteHop
from tracer.model.joined_packet import NodeView
from tracer.model.namespace_name import is_host
from tracer.model.packet import Outcome, Packet
from tracer.util.endpoint_format import format_endpoint

GOES_ON_NS = 1_000_000_000
"""Time after which a sender that was informed sends shorter packets, ns: the segments of one burst are dropped together."""
FEWEST_LOST = 2
"""Number of long packets that must be lost."""
REPORTS = {("ICMP", 3, 4), ("ICMPv6", 2, 0)}
"""Protocol, type and code of ICMP messages that say that a packet was too long."""


def find(view: NodeView, context: ClusterContext) -> Finding | None:
    packet, node = view.packet, view.node
    if packet.icmp and (packet.protocol, *packet.icmp) in REPORTS:
        context.reports[packet.endpoints.dst] += 1
        return None
    drop = packet.drop if packet.outcome is Outcome.DROPPED else None
    if not drop or not packet.complete or not (drop.reason == REASON or drop.function in FUNCTIONS):
        return None
    owner = context.nodes.owner(_destination(packet))
    if not is_host(packet.hops[-1].netns) or not owner or owner.node == node:
        return None
    key, time = (node, packet.protocol, packet.endpoints, packet.seq), view.time
    before = context.too_long.get(key, TooLong(time, 0))
    context.too_long[key] = TooLong(before.since, before.packets + 1)
    pair = NodePair(packet.family, node, owner.node, owner.is_pod)
    carried = context.carried.get(pair)
    if time - before.since < GOES_ON_NS or not carried or carried.longest >= packet.length or context.carried.evicted:
        return None  # it was informed a moment ago, or it is not known how long packets of this way can be
    return _dropped(view, pair, carried, context.too_long[key], context)


def find_at_end(context: ClusterContext) -> Iterator[tuple[Packet, Finding]]:
    """Yields what the lengths of all lost packets show. One that is not longer than those that came speaks against it."""
    if context.carried.evicted or context.lost.evicted:
        return
    for pair, lost in context.lost.items():
        carried = context.carried.get(pair, CarriedLengths())
        # Shorter ones must have come meanwhile: otherwise nothing came at all.
        is_enough = lost.packets >= FEWEST_LOST and carried.last_but_one > lost.since
        if is_enough and lost.shortest > carried.longest:
            yield lost.example, _likely(pair, lost, carried, context)


def _destination(packet: Packet) -> str:
    """The destination of a packet after the last translation."""
    nat = next((hop.nat for hop in reversed(packet.hops) if isinstance(hop, RewriteHop) and not hop.clone), None)
    return nat.after.dst if nat else packet.endpoints.dst


def _to(pair: NodePair) -> str:
    return f"pods of node {pair.target}" if pair.is_pod else f"node {pair.target}"


def _dropped(view: NodeView, pair: NodePair, carried: CarriedLengths, drops: TooLong, context: ClusterContext) -> Finding:
    packet, node = view.packet, pair.node
    seconds = (view.time - drops.since) / 1e9
    ends = packet.endpoints
    doubt = "" if packet.protocol == "TCP" else "Its program may try on purpose how long datagrams can be."
    flow = f"{format_endpoint(ends.src, ends.sport)} -> {format_endpoint(ends.dst, ends.dport)}"
    proofs = (
        FindingEvidence("packet", f"{flow}, {packet.length} bytes: {packet.verdict}", "observed"),
        FindingEvidence(
            "counter", f"node {node} dropped {drops.packets} equal packets of this flow in {seconds:.0f} s", "observed"
        ),
        *_figures(pair, carried, ends.src, context),
    )
    return Finding(
        name="",
        key=tuple(pair),
        cause=likely_cause(
            f"Packets of {packet.length} bytes are too long for the way from node {node} to {_to(pair)}, where the longest that"
            f" came had {carried.longest} bytes: node {node} drops them, and the sender still sends them {seconds:.0f} s"
            " later.",
            doubt,
        ),
        proofs=proofs,
        check=_check(pair, packet, ""),
        cure=_cure(packet),
        certain=not doubt,
    )


def _likely(pair: NodePair, lost: LostLengths, carried: CarriedLengths, context: ClusterContext) -> Finding:
    example = lost.example
    lengths = f"{lost.shortest} to {lost.longest}" if lost.longest > lost.shortest else f"{lost.shortest}"
    proofs = (
        FindingEvidence(
            "counter", f"{lost.packets} packets of {lengths} bytes left node {pair.node} and were lost", "observed"
        ),
        FindingEvidence("counter", "shorter ones that left after the first of them came", "observed"),
        *_figures(pair, carried, example.endpoints.src, context),
    )
    return Finding(
        name="",
        key=tuple(pair),
        cause=(
            f"Perhaps long packets are too long for the way from node {pair.node} to {_to(pair)}: all {lost.packets} that were"
            f" lost had {lengths} bytes, and the longest that came had {carried.longest}."
        ),
        proofs=proofs,
        check=_check(pair, example, lost.iface),
        cure=_cure(example),
        certain=False,
    )


def _figures(pair: NodePair, carried: CarriedLengths, source: str, context: ClusterContext) -> Iterator[FindingEvidence]:
    text = f"{carried.packets} packets from node {pair.node} to {_to(pair)} came, the longest had {carried.longest} bytes"
    yield FindingEvidence("counter", text, "observed")
    if reports := context.reports[source]:
        yield FindingEvidence("counter", f"{reports} ICMP messages 'too long' to {source} were seen", "observed")


def _check(pair: NodePair, packet: Packet, iface: str) -> str:
    headers = 48 if packet.family == "IPv6" else 28
    left = f" (they left by {iface})" if iface else ""
    return (
        f"On nodes {pair.node} and {pair.target}: `ip -d link` has the MTU of each interface{left}; that of a tunnel and of the"
        " pods has to be that of the network card less the tunnel's header: VXLAN and Geneve 50 bytes over IPv4 and 70 over"
        f" IPv6, IPIP 20, WireGuard 60 and 80. From the sender: `ping -c 1 -M do -s {max(packet.length - headers, 0)}"
        f" {_destination(packet)}` sends a packet of that length."
    )


def _cure(packet: Packet) -> str:
    tables = "ip6tables" if packet.family == "IPv6" else "iptables"
    return (
        "Give the pods' interfaces and the tunnel an MTU that the network between the nodes carries (the CNI plugin's mtu), let"
        " ICMP 'fragmentation needed' pass, or clamp the MSS:"
        f" `{tables} -t mangle -A FORWARD -p tcp --tcp-flags SYN,RST SYN -j TCPMSS --clamp-mss-to-pmtu`."
    )
