"""A packet is too long for the interface it should leave by, and must not be cut: large transfers hang, small ones work.

Tunnels make packets longer (VXLAN by 50 bytes); where a pod's interface has the MTU of the network below, only full segments
are too long.
"""

from __future__ import annotations

from tracer.findings.context import Context
from tracer.findings.model import Finding, Proof, packet_proof
from tracer.model import Packet

REASON = "PKT_TOO_BIG"
FUNCTIONS = frozenset({"ip_fragment", "ip_do_fragment", "ip6_fragment", "ip6_pkt_too_big"})
"""Functions that drop for nothing else; kernels before 5.19 give no reason."""


def find(packet: Packet, context: Context) -> Finding | None:
    drop = packet.drop
    if not drop or not (drop.reason == REASON or drop.function in FUNCTIONS):
        return None
    leaves = next((h.out_iface for h in reversed(packet.hops) if h.out_iface and not h.clone), "")
    mtu = context.node.mtu(leaves) if leaves else 0
    limit = f", whose MTU is {mtu}," if mtu else ""
    ends = packet.endpoints
    told = [Proof("setting", f"MTU of {leaves} is {mtu}", "/sys/class/net")] if mtu else []
    return Finding(
        name="",
        key=(ends.dst, leaves),
        cause=(
            f"A packet of {packet.length} bytes from {ends.src} to {ends.dst} is too long for {leaves or 'its way'}{limit} and"
            " must not be cut: the sender is told so by ICMP, and where that does not reach it, every full segment is lost."
        ),
        proofs=(packet_proof(packet), *told),
        check=f"From {ends.src}: ping -M do -s 1472 {ends.dst}, and smaller; ip link shows the MTU of each interface.",
        cure=(
            "Give the pods' interfaces the MTU of the tunnel (the CNI plugin's mtu), let ICMP 'fragmentation needed' pass, or"
            " clamp the MSS: iptables -t mangle -A FORWARD -p tcp --tcp-flags SYN,RST SYN -j TCPMSS --clamp-mss-to-pmtu."
        ),
    )
