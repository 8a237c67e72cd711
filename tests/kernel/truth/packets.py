# SPDX-License-Identifier: Apache-2.0
"""Random packets through the node, each with its own header: TCP, UDP, ICMP and rarer protocols, IPv4 and IPv6, whole and
in fragments, with IP options, with any number of extension headers, and with transport headers that end too early.

Each IPv4 packet has its own identification, each IPv6 packet its own ports or source address.
"""

from __future__ import annotations

import random
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from ipaddress import ip_address
from itertools import count

from scenes import packets, topology
from scenes.netns import entered
from tests.kernel.truth import second

PORTS = (53, 80, 443, 8080, 9999, 30053, 30285)
FLAGS = (packets.SYN, packets.SYN, packets.SYN, packets.SYN | packets.ACK, packets.ACK, packets.RST, packets.FIN | packets.ACK)
_TCP, _UDP, _ICMP, _ICMPV6, _SCTP, _DCCP, _ESP, _AH, _UDPLITE = 6, 17, 1, 58, 132, 33, 50, 51, 136
_HOP_BY_HOP, _ROUTING, _DESTINATION = 0, 43, 60
_Place = tuple[str | None, str, str]

_numbers = count(10_000)
"""Source ports, ICMP identifiers, IPv4 identifications, and the last part of IPv6 addresses."""

SENDERS: tuple[_Place, ...] = (
    (topology.CLIENT, topology.CLIENT4, topology.CLIENT6),
    (topology.CLIENT, topology.CLIENT4, topology.CLIENT6),
    (None, topology.NODE4, topology.NODE6),
    ("pod-a", topology.PODS[0].addr4, topology.PODS[0].addr6),
    (second.NAME, second.ADDRESS4, second.ADDRESS6),
)
TARGETS = (
    (topology.NODE4, topology.NODE6),
    (topology.PODS[1].addr4, topology.PODS[1].addr6),
    (topology.PODS[2].addr4, topology.PODS[2].addr6),
    (topology.DRAIN4, topology.DRAIN6),
    (topology.CLIENT4, topology.CLIENT6),
    (second.ADDRESS4, second.ADDRESS6),
)


class Sender:
    """Raw sockets in each namespace that packets are sent from; a context manager."""

    def __init__(self) -> None:
        self._sockets: dict[tuple[str | None, int], socket.socket] = {}

    def __enter__(self) -> Sender:
        for ns in {place[0] for place in SENDERS}:
            with entered(ns):
                for version, family in enumerate((socket.AF_INET, socket.AF_INET6)):
                    self._sockets[ns, version] = socket.socket(family, socket.SOCK_RAW, socket.IPPROTO_RAW)
        return self

    def __exit__(self, *_: object) -> None:
        for sock in self._sockets.values():
            sock.close()

    def send(self, rng: random.Random) -> None:
        """Sends one packet. It counts also where a rule of OUTPUT drops it, or the kernel refuses it."""
        ns, *sources = rng.choice(SENDERS)
        target, version = rng.choice(TARGETS), rng.choice((0, 0, 1))
        number = next(_numbers) % 50_000 + 10_000
        with suppress(OSError):
            if rng.random() < 0.04:
                _send_long(rng, ns, version, target[version], number)
                return
            packet = _packet(rng, version, sources[version], target[version], number)
            self._sockets[ns, version].sendto(packet, (target[version], 0))


def _send_long(rng: random.Random, ns: str | None, version: int, dst: str, number: int) -> None:
    """A UDP packet that leaves the sender in fragments."""
    with entered(ns), socket.socket((socket.AF_INET, socket.AF_INET6)[version], socket.SOCK_DGRAM) as sock:
        sock.bind(("", number))
        sock.sendto(b"x" * rng.choice((2000, 4000)), (dst, rng.choice(PORTS)))


def _packet(rng: random.Random, version: int, source: str, target: str, number: int) -> bytes:
    protocol = rng.choice((_TCP, _TCP, _TCP, _UDP, _UDP, _UDP, _ICMPV6 if version else _ICMP))
    rare = rng.random() < 0.1
    if rare:
        protocol = rng.choice((_SCTP, _DCCP, _ESP, _AH, _UDPLITE))
    cut = rng.random() < 0.15
    extended = bool(version) and rng.random() < 0.3
    if version and (rare or cut or extended):
        source = f"{second.ELSEWHERE6}{number:x}"
    src, dst = ip_address(source).packed, ip_address(target).packed
    body = _transport(rng, protocol, src, dst, number)
    if cut:
        body = body[: rng.choice((0, 1, 2, 3, 3, 4, 5, 7, 8, 11, 13, 16, 19))]
    if not version:
        options = b"\1\1\1\0" if rng.random() < 0.1 else b""
        words = 5 + len(options) // 4
        # the kernel fills in length and checksum
        head = struct.pack("!BBHHHBBH4s4s", 0x40 | words, 0, 0, number, 0, 64, protocol, 0, src, dst)
        return head + options + body
    first, extensions = _extensions(rng, protocol) if extended else (protocol, b"")
    if extended and rng.random() < 0.1:  # the headers end too early
        body, extensions = b"", extensions[: rng.randrange(1, len(extensions) + 1)]
    payload = extensions + body
    return struct.pack("!IHBB16s16s", 6 << 28, len(payload), first, 64, src, dst) + payload


def _extensions(rng: random.Random, protocol: int) -> tuple[int, bytes]:
    """The number of the first of some extension headers, and all of them; the last one announces `protocol`."""
    kinds = [rng.choice((_DESTINATION, _ROUTING, _AH)) for _ in range(rng.choice((1, 1, 2, 3, 4, 5, 5, 6, 7, 9, 12)))]
    if rng.random() < 0.04:
        kinds = [_DESTINATION] * rng.randrange(14, 24)
    if rng.random() < 0.3:
        kinds.insert(0, _HOP_BY_HOP)
    following = [*kinds[1:], protocol]
    return kinds[0], b"".join(_extension(rng, kind, after) for kind, after in zip(kinds, following, strict=True))


def _extension(rng: random.Random, kind: int, after: int) -> bytes:
    words = rng.randrange(3)
    if kind == _AH:
        return struct.pack("!BBHII", after, 1 + words, 0, rng.getrandbits(32), 1) + bytes(4 * words)
    if kind == _ROUTING:
        return struct.pack("!BBBBI", after, 0, 253, 0, 0)
    return struct.pack("!BBBB", after, words, 1, 4 + 8 * words) + bytes(4 + 8 * words)  # PadN


def _sum(data: bytes) -> int:
    data += b"\0" * (len(data) % 2)
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def _transport(rng: random.Random, protocol: int, src: bytes, dst: bytes, number: int) -> bytes:
    """Header and payload. TCP, UDP and ICMP have a checksum; except for ICMP's, it covers the IP addresses."""
    payload = rng.randbytes(rng.randrange(0, 40))
    port = rng.choice(PORTS)
    maker = _MAKERS.get(protocol)
    if not maker:
        return struct.pack("!HHII", number, port, rng.getrandbits(32), 0) + payload
    whole, at = maker(rng, number, port, payload)
    pseudo = b"" if protocol == _ICMP else src + dst + struct.pack("!IHBB", len(whole), 0, 0, protocol)
    return whole[:at] + struct.pack("!H", _sum(pseudo + whole) or 0xFFFF) + whole[at + 2 :]


def _tcp(rng: random.Random, number: int, port: int, payload: bytes) -> tuple[bytes, int]:
    options = rng.choice((b"", b"", b"\2\4\5\xb4", b"\1\1\1\1\2\4\2\0"))
    words = 5 + len(options) // 4
    if rng.random() < 0.05:
        words = rng.choice((0, 4, 15))  # a wrong length
    head = struct.pack("!HHIIBBHHH", number, port, rng.getrandbits(32), 0, words << 4, rng.choice(FLAGS), 64240, 0, 0)
    return head + options, 16


def _udp(rng: random.Random, number: int, port: int, payload: bytes) -> tuple[bytes, int]:
    return struct.pack("!HHHH", number, port, 8 + len(payload), 0) + payload, 6


def _echo(kind: int) -> Callable[[random.Random, int, int, bytes], tuple[bytes, int]]:
    return lambda rng, number, port, payload: (struct.pack("!BBHHH", kind, 0, 0, number, 1) + payload, 2)


_MAKERS: dict[int, Callable[[random.Random, int, int, bytes], tuple[bytes, int]]] = {
    _TCP: _tcp,
    _UDP: _udp,
    _ICMP: _echo(8),
    _ICMPV6: _echo(128),
}
