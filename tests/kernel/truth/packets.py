"""Random packets through the node, each with ports of its own: TCP, UDP and ICMP, IPv4 and IPv6, some in fragments."""

from __future__ import annotations

import random
import socket
import struct
from itertools import count

from scenes import packets, topology
from scenes.netns import entered

PORTS = (53, 80, 443, 8080, 9999, 30053, 30285)
FLAGS = (packets.SYN, packets.SYN, packets.SYN, packets.SYN | packets.ACK, packets.ACK, packets.RST, packets.FIN | packets.ACK)
_Place = tuple[str | None, str, str]

_numbers = count(10_000)
"""Source ports, and ICMP identifiers."""

SENDERS: tuple[_Place, ...] = (
    (topology.CLIENT, topology.CLIENT4, topology.CLIENT6),
    (topology.CLIENT, topology.CLIENT4, topology.CLIENT6),
    (None, topology.NODE4, topology.NODE6),
    ("pod-a", topology.PODS[0].addr4, topology.PODS[0].addr6),
)
TARGETS = (
    (topology.NODE4, topology.NODE6),
    (topology.PODS[1].addr4, topology.PODS[1].addr6),
    (topology.PODS[2].addr4, topology.PODS[2].addr6),
    (topology.DRAIN4, topology.DRAIN6),
    (topology.CLIENT4, topology.CLIENT6),
)


def send(dice: random.Random) -> None:
    """One packet. Raises PermissionError when a rule of OUTPUT drops it: sendto says so."""
    ns, *sources = dice.choice(SENDERS)
    target, version = dice.choice(TARGETS), dice.choice((0, 0, 1))
    src, dst, number = sources[version], target[version], next(_numbers)
    kind = dice.choice(("tcp", "tcp", "udp", "udp", "icmp"))
    if kind == "tcp":
        packets.send_tcp(dst, dice.choice(PORTS), src=src, sport=number, flags=dice.choice(FLAGS), ns=ns)
        return
    family = (socket.AF_INET, socket.AF_INET6)[version]
    with entered(ns):
        if kind == "udp":
            sock = socket.socket(family, socket.SOCK_DGRAM)
        else:
            protocol = (socket.IPPROTO_ICMP, socket.IPPROTO_ICMPV6)[version]
            sock = socket.socket(family, socket.SOCK_RAW, protocol)
    with sock:
        if kind == "udp":
            sock.bind(("", number))
            # the long ones leave the sender in fragments
            sock.sendto(
                b"x" * dice.choice((dice.randrange(1, 200), dice.randrange(1, 200), 2000, 4000)), (dst, dice.choice(PORTS))
            )
        else:
            sock.sendto(_echo((8, 128)[version], number), (dst, 0))


def _echo(kind: int, number: int) -> bytes:
    """An echo request; the kernel fills in the checksum of ICMPv6."""
    bare = struct.pack("!BBHHH", kind, 0, 0, number, 1) + b"k8snet-trace"
    total = sum(struct.unpack(f"!{len(bare) // 2}H", bare))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return bare[:2] + struct.pack("!H", ~total & 0xFFFF) + bare[4:]
