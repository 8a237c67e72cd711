# SPDX-License-Identifier: Apache-2.0
"""Writes the table of kube-network-policies, and decides about the packets of its queue as the policies say.

The program has no rule for a policy: its rules send the first packets of a connection to a queue (NFQUEUE), and its process
answers. Written from the description of its source, pkg/dataplane/controller.go. The process here decides by
policy_semantics.py; rules for DNS and for the label of allowed connections are left out.
"""

from __future__ import annotations

import socket
import struct

from tests.support.policy_semantics import World, address_of, expected

Step = tuple[str, str]
TABLE, QUEUE = "kube-network-policies", 100
PROTOCOLS = {6: "TCP", 17: "UDP"}


def steps(world: World) -> list[Step]:
    """(program, text) in the order in which they must be written."""
    pods = [p for p in world.local if any(any(q is p for q in world.selected(each)) for each in world.policies)]
    elements = f"\n\t\telements = {{ {', '.join(map(address_of, pods))} }}" if pods else ""
    accepted = "".join(
        f"\t\ticmpv6 type nd-{kind} accept\n"
        for kind in ("router-solicit", "router-advert", "neighbor-solicit", "neighbor-advert", "redirect")
    )
    table = f"""table inet {TABLE} {{
\tset podips-v4 {{
\t\ttype ipv4_addr{elements}
\t}}
\tset podips-v6 {{
\t\ttype ipv6_addr
\t}}
\tchain postrouting {{
\t\ttype filter hook postrouting priority srcnat - 5; policy accept;
{accepted}\t\tmeta skuid 0 counter accept
\t\tct state established,related counter accept
\t\tip saddr @podips-v4 queue to {QUEUE}
\t\tip daddr @podips-v4 queue to {QUEUE}
\t\tip6 saddr @podips-v6 queue to {QUEUE}
\t\tip6 daddr @podips-v6 queue to {QUEUE}
\t}}
}}
"""
    return [("native", table)]


def decides(world: World, packet: bytes) -> bool:
    """Whether the policies let a packet of IPv4 pass. packet: its first bytes."""
    protocol, start = PROTOCOLS.get(packet[9]), (packet[0] & 15) * 4
    if not protocol or len(packet) < start + 4:
        return True
    source, to = (socket.inet_ntoa(packet[at : at + 4]) for at in (12, 16))
    port = struct.unpack_from("!H", packet, start + 2)[0]
    return all(each.is_allowed for each in expected(world, source, to, protocol, port))
