"""Random packets, from the client through the node: TCP, UDP and ICMP, IPv4 and IPv6, to the node, to pods and beyond."""

from __future__ import annotations

import socket
import struct
from ipaddress import ip_address
from random import Random

from scenes.netns import entered
from scenes.topology import CLIENT, CLIENT4, CLIENT6, DRAIN4, DRAIN6, NODE4, NODE6, PODS

PORTS = (22, 53, 80, 443, 3306, 8080, 9999, 30285, 30420, 40000)
TARGETS = {
    4: (NODE4, DRAIN4, "203.0.113.77", PODS[0].addr4, PODS[1].addr4),
    6: (NODE6, DRAIN6, "fd00:113::77", PODS[0].addr6, PODS[1].addr6),
}
SOURCES = {4: (CLIENT4, CLIENT4, "192.168.56.77", "198.51.100.7"), 6: (CLIENT6, CLIENT6, "fd00:56::77", "2001:db8::7")}
PROTOCOLS = {"tcp": 6, "udp": 17, "icmp": 1, "icmpv6": 58}
_TCP_FLAGS = (0x02, 0x02, 0x10, 0x12, 0x04)


def _sum(data: bytes) -> int:
    data += b"\0" * (len(data) % 2)
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def _segment(random: Random, family: int, protocol: int, src: bytes, dst: bytes) -> bytes:
    """Transport header and payload, with its checksum. Ports of sources stay clear of what real programs use."""
    sport, dport = random.randrange(20000, 60000), random.choice(PORTS)
    payload = random.randbytes(random.randrange(4, 40))
    if protocol == 6:
        sequence = random.getrandbits(32)
        packed, at = struct.pack("!HHIIBBHHH", sport, dport, sequence, 0, 0x50, random.choice(_TCP_FLAGS), 64000, 0, 0), 16
        payload = b""
    elif protocol == 17:
        packed, at = struct.pack("!HHHH", sport, dport, 8 + len(payload), 0), 6
    else:
        packed, at = struct.pack("!BBHHH", 8 if family == 4 else 128, 0, 0, sport, 1), 2
    whole = packed + payload
    pseudo = b"" if protocol == 1 else src + dst + struct.pack("!IHBB", len(whole), 0, 0, protocol)
    return whole[:at] + struct.pack("!H", _sum(pseudo + whole) or 0xFFFF) + whole[at + 2 :]


def packet(random: Random) -> tuple[int, str, bytes]:
    """Family, destination, and the whole packet."""
    family = random.choice((4, 4, 6))
    protocol = random.choice((6, 6, 17, 17, 1 if family == 4 else 58))
    dst = random.choice(TARGETS[family])
    src, to = ip_address(random.choice(SOURCES[family])).packed, ip_address(dst).packed
    body = _segment(random, family, protocol, src, to)
    if family == 4:
        # the kernel fills in length and checksum
        head = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 20 + len(body), random.randrange(1, 65536), 0, 64, protocol, 0, src, to)
    else:
        head = struct.pack("!IHBB16s16s", 6 << 28, len(body), protocol, 64, src, to)
    return family, dst, head + body


class Sender:
    """Sends from the client's namespace."""

    def __init__(self) -> None:
        with entered(CLIENT):
            self._sockets = {
                4: socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW),
                6: socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_RAW),
            }

    def send(self, random: Random) -> None:
        family, dst, raw = packet(random)
        self._sockets[family].sendto(raw, (dst, 0))

    def close(self) -> None:
        for sock in self._sockets.values():
            sock.close()
