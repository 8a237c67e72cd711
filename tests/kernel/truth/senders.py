# SPDX-License-Identifier: Apache-2.0
"""Random packets through the node: TCP, UDP and ICMP, IPv4 and IPv6, whole and in fragments, to node, pods and beyond."""

from __future__ import annotations

import socket
import struct
from contextlib import suppress
from ipaddress import ip_address
from random import Random

from scenes.netns import entered
from scenes.topology import CLIENT, CLIENT4, CLIENT6, DRAIN4, DRAIN6, NODE4, NODE6, PODS

PORTS = (22, 53, 80, 443, 3306, 8080, 9999, 30285, 30420, 40000)
TARGETS = {
    4: (NODE4, DRAIN4, "203.0.113.77", PODS[0].addr4, PODS[1].addr4),
    6: (NODE6, DRAIN6, "fd00:113::77", PODS[0].addr6, PODS[1].addr6),
}
SOURCES: dict[str | None, dict[int, tuple[str, ...]]] = {
    CLIENT: {4: (CLIENT4, CLIENT4, "192.168.56.77", "198.51.100.7"), 6: (CLIENT6, CLIENT6, "fd00:56::77", "2001:db8::7")},
    None: {4: (NODE4,), 6: (NODE6,)},
    "pod-b": {4: (PODS[1].addr4,), 6: (PODS[1].addr6,)},
}
"""Addresses by namespace and family; some of the client's are not its own."""
PROTOCOLS = {"tcp": 6, "udp": 17, "icmp": 1, "icmpv6": 58}
_TCP_FLAGS = (0x02, 0x02, 0x10, 0x12, 0x04)


def _sum(data: bytes) -> int:
    data += b"\0" * (len(data) % 2)
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def _segment(random: Random, family: int, protocol: int, src: bytes, dst: bytes) -> bytes:
    """Transport header and payload, with its checksum. Source ports are not those of real programs."""
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


def _fragments(random: Random, head: bytes, body: bytes) -> list[bytes]:
    """An IPv4 packet in two fragments."""
    cut = 8 * random.randrange(1, max(2, len(body) // 8))
    out = []
    for first, last in ((0, cut), (cut, len(body))):
        flags = first // 8 | (0x2000 if last < len(body) else 0)
        part = body[first:last]
        out.append(head[:2] + struct.pack("!H", 20 + len(part)) + head[4:6] + struct.pack("!H", flags) + head[8:] + part)
    return out


def _fragments6(random: Random, head: bytes, body: bytes) -> list[bytes]:
    """An IPv6 packet in two fragments, each with its extension header."""
    cut, ident = 8 * random.randrange(1, max(2, len(body) // 8)), random.getrandbits(32)
    out = []
    for first, last in ((0, cut), (cut, len(body))):
        extension = struct.pack("!BBHI", head[6], 0, first | (last < len(body)), ident)
        part = extension + body[first:last]
        out.append(head[:4] + struct.pack("!HB", len(part), 44) + head[7:] + part)
    return out


def _with_extensions(random: Random, protocol: int, body: bytes) -> tuple[int, bytes]:
    """Puts one to seven extension headers of IPv6 before the body; returns the first one's number, and all of it."""
    for _ in range(random.randrange(1, 8)):
        kind = random.choice((60, 60, 43, 51))
        if kind == 51:
            packed = struct.pack("!BBHIII", protocol, 2, 0, 7, 1, 0)
        elif kind == 43:
            packed = struct.pack("!BBBBI", protocol, 0, 253, 0, 0)  # an experimental type, no segments left
        else:
            packed = struct.pack("!BBBB4s", protocol, 0, 1, 4, b"")
        protocol, body = kind, packed + body
    if random.random() < 0.3:
        protocol, body = 0, struct.pack("!BBBB4s", protocol, 0, 1, 4, b"") + body
    return protocol, body


def packet(random: Random, sources: dict[int, tuple[str, ...]]) -> tuple[int, str, list[bytes]]:
    """Family, destination, and the packet: whole, or in its fragments. sources: addresses to send from, by family."""
    family = random.choice((4, 4, 6))
    protocol = random.choice((6, 6, 17, 17, 1 if family == 4 else 58))
    dst = random.choice(TARGETS[family])
    src, to = ip_address(random.choice(sources[family])).packed, ip_address(dst).packed
    body = _segment(random, family, protocol, src, to)
    odd = random.random()
    if odd < 0.08:
        body = body[: random.randrange(8 if protocol == 17 else 20)]
    if family == 6 and odd > 0.85:
        protocol, body = _with_extensions(random, protocol, body)
    if family == 4:
        # the kernel fills in length and checksum
        head = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 20 + len(body), random.randrange(1, 65536), 0, 64, protocol, 0, src, to)
    else:
        head = struct.pack("!IHBB16s16s", 6 << 28, len(body), protocol, 64, src, to)
    if protocol == 17 and len(body) > 16 and random.random() < 0.2:
        return family, dst, (_fragments if family == 4 else _fragments6)(random, head, body)
    return family, dst, [head + body]


class Sender:
    """Sends from the client, from the node itself and from a pod."""

    def __init__(self) -> None:
        self._sockets = {ns: self._open(ns) for ns in SOURCES}

    @staticmethod
    def _open(ns: str | None) -> dict[int, socket.socket]:
        with entered(ns):
            return {
                4: socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW),
                6: socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_RAW),
            }

    def send(self, random: Random) -> None:
        ns = random.choice((CLIENT, CLIENT, None, "pod-b"))
        family, dst, fragments = packet(random, SOURCES[ns])
        with suppress(PermissionError):  # the node's error when a rule of its OUTPUT dropped the packet
            for fragment in fragments:
                self._sockets[ns][family].sendto(fragment, (dst, 0))

    def close(self) -> None:
        for sockets in self._sockets.values():
            for sock in sockets.values():
                sock.close()
