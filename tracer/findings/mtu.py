# SPDX-License-Identifier: Apache-2.0
"""A packet is too long for its outgoing interface and must not be fragmented: large transfers hang, small ones work.

Tunnels make packets longer (VXLAN by 50 bytes). If a pod's interface has the MTU of the underlying network, only full-size
segments are too long.
"""

from __future__ import annotations

from tracer.findings.context import FindingContext
from tracer.findings.proofs import packet_proof
from tracer.model.finding import Finding, FindingEvidence
from tracer.model.hop import DropHop, RewriteHop
from tracer.model.namespace_name import Netns, is_host
from tracer.model.netfilter import Hook
from tracer.model.packet import Packet
from tracer.node.node_questions import Mtu, WayOut
from tracer.util.questions import value_of

REASON = "PKT_TOO_BIG"
FUNCTIONS = frozenset({"ip_fragment", "ip_do_fragment", "ip6_fragment", "ip6_pkt_too_big"})
"""Functions that drop packets only for this reason. Kernels before 5.19 give no reason."""
MTU, WAY_OUT = Mtu(), WayOut()
ASKS = (MTU, WAY_OUT)


def find(packet: Packet, context: FindingContext) -> Finding | None:
    drop = packet.drop
    if not drop or not (drop.reason == REASON or drop.function in FUNCTIONS):
        return None
    netns, leaves = _way_out(packet, context)
    mtu = value_of(context.ask(MTU, leaves)) if leaves and is_host(netns) else None
    limit = f", whose MTU is {mtu}," if mtu else ""
    ends, v6 = packet.endpoints, packet.family == "IPv6"
    # Lengths of the headers of IP and of an ICMP echo request.
    headers, tables = (48, "ip6tables") if v6 else (28, "iptables")
    setting_proofs = [FindingEvidence("setting", f"MTU of {leaves} is {mtu}", "/sys/class/net")] if mtu else []
    return Finding(
        name="",
        key=(ends.dst, leaves),
        cause=(
            f"A packet of {packet.length} bytes from {ends.src} to {ends.dst} is too long for {leaves or 'its route'}{limit}"
            " and must not be fragmented: ICMP reports it to the sender; if the ICMP message is lost, so is every full segment."
        ),
        proofs=(packet_proof(packet), *setting_proofs),
        check=(
            f"From {ends.src}: `ping -c 1 -M do -s {max(packet.length - headers, 0)} {ends.dst}` sends a packet of that length,"
            " and smaller ones pass; `ip link` shows the MTU of each interface."
        ),
        cure=(
            "Give the pods' interfaces the MTU of the tunnel (the CNI plugin's mtu), let ICMP 'fragmentation needed' pass, or"
            f" clamp the MSS: `{tables} -t mangle -A FORWARD -p tcp --tcp-flags SYN,RST SYN -j TCPMSS --clamp-mss-to-pmtu`."
        ),
    )


def _way_out(packet: Packet, context: FindingContext) -> tuple[Netns, str]:
    """Returns (namespace of the drop, outgoing interface; "" = not known).

    The kernel checks the length of forwarded packets before FORWARD, when no hook has shown the outgoing interface yet. Then
    the interface comes from the node's routing.
    """
    at = next((i for i, h in enumerate(packet.hops) if isinstance(h, DropHop) and not h.clone), len(packet.hops))
    netns = packet.hops[at].netns if at < len(packet.hops) else packet.netns
    here = [h for h in packet.hops[:at] if h.netns == netns and not h.clone]
    came = max((i for i, h in enumerate(here) if h.hook is Hook.PREROUTING), default=-1)
    leaves = next((h.out_iface for h in reversed(here[came + 1 :]) if h.out_iface), "")
    if leaves or not is_host(netns):
        return netns, leaves
    nat = next((h.nat for h in reversed(here) if isinstance(h, RewriteHop)), None)
    to = nat.after.dst if nat else packet.endpoints.dst
    return netns, value_of(context.ask(WAY_OUT, to)) or ""
