# SPDX-License-Identifier: Apache-2.0
"""The header of a packet as bytes: what an event recorded of it, or the bytes that --snaplen recorded.

Events have addresses, ports, protocol, length, TCP flags and numbers, ICMP type and code. The other bits are open. An IPv4
header is laid out without options and an IPv6 header without extension headers, because events have the transport header
wherever it is.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

from tracer.events.record import PROTOCOLS
from tracer.model.packet import Packet
from tracer.model.tcp_flags import flags_value
from tracer.selection.ternary import Ternary

NUMBERS = {name.lower(): number for number, name in PROTOCOLS.items()}
_UNKNOWN = Ternary(0, 0xFF, 0xFF)
_ANY = Ternary(0, 0xFF)
"""A byte that is recorded, and that differs in each packet."""
_VERSIONS = {4: Ternary(0x40, 0x0F, 0x0F), 6: Ternary(0x60, 0x0F, 0x0F)}
_LATER_FRAGMENT = (Ternary(0, 0xFF, 0xFF), Ternary(1, 0xFE, 0xFE))
"""Flags and offset of a fragment that is not the first one: the offset is not zero, and not recorded."""
_WHOLE_PACKET = (Ternary(0, 0xE0, 0xE0), Ternary(0))
_KNOWN_FLAGS = 0x3F
"""The TCP flags that an event's text has."""


class RecordedHeader:
    """The bytes of a packet from its IP header on; implements cbpf.Header.

    Args:
        start: The bytes at the beginning.
        length: Length of the whole packet. Bytes behind `start` are not recorded.
        transport: Where the transport header begins; 0 = the length field of the IPv4 header has it.
    """

    def __init__(self, start: Sequence[Ternary], length: Ternary, transport: int = 0) -> None:
        self._start, self.length, self._transport = start, length, transport

    def load(self, offset: int, size: int) -> Ternary | None:
        end = offset + size
        if end > self.length.value | self.length.open:
            return None
        found = Ternary(0)
        for at in range(offset, end):
            found = found.shifted(8).bitwise_or(self._start[at] if at < len(self._start) else _UNKNOWN)
        return found

    def header_length(self, offset: int) -> Ternary | None:
        if self._transport:
            return Ternary(self._transport)
        byte = self.load(offset, 1)
        return None if byte is None else byte.bitwise_and(Ternary(15)).shifted(2)


def header_of(packet: Packet) -> RecordedHeader:
    """The header of a packet where it was first seen."""
    if packet.raw:
        return RecordedHeader([Ternary(byte) for byte in packet.raw], Ternary(packet.length))
    number = NUMBERS.get(packet.protocol.lower())
    if number is None:
        number = int(packet.protocol) if packet.protocol.isdigit() else 0
    ends = packet.endpoints
    has_transport = bool(ends.sport or ends.dport or packet.tcp_flags or packet.icmp)
    addresses = [Ternary(byte) for text in (ends.src, ends.dst) for byte in ipaddress.ip_address(text).packed]
    family = 6 if packet.family == "IPv6" else 4
    transport = _transport_of(packet, number) if has_transport else []
    return _laid_out(family, _bytes(packet.length, 2), number, addresses, transport, _is_later_fragment(number, has_transport))


def _is_later_fragment(number: int, has_transport: bool) -> bool:
    return number in (6, 17, 132) and not has_transport


def _bytes(value: int, size: int) -> list[Ternary]:
    return [Ternary(byte) for byte in (value & (1 << 8 * size) - 1).to_bytes(size, "big")]


def _transport_of(packet: Packet, number: int) -> list[Ternary]:
    if packet.icmp:
        return [Ternary(packet.icmp[0]), Ternary(packet.icmp[1])]
    ports = _bytes(packet.endpoints.sport, 2) + _bytes(packet.endpoints.dport, 2)
    if number != NUMBERS["tcp"]:
        return ports
    flags = Ternary(flags_value(packet.tcp_flags), 0xFF & ~_KNOWN_FLAGS, 0xFF & ~_KNOWN_FLAGS)
    return [*ports, *_bytes(packet.seq, 4), *_bytes(packet.ack, 4), _UNKNOWN, flags]


def _laid_out(
    family: int,
    length: list[Ternary],
    number: int,
    addresses: list[Ternary],
    transport: list[Ternary],
    is_fragment: bool = False,
) -> RecordedHeader:
    """length: of the whole packet, two bytes. is_fragment: a fragment that is not the first one."""
    total = length[0].shifted(8).bitwise_or(length[1])
    protocol = Ternary(number)
    if family == 6:
        payload = total.calculated(Ternary(40), int.__sub__)
        parts = [payload.shifted(-8).bitwise_and(Ternary(255)), payload.bitwise_and(Ternary(255))]
        ip = [_VERSIONS[6], *[_UNKNOWN] * 3, *parts, protocol, _UNKNOWN, *addresses]
    else:
        fragment = _LATER_FRAGMENT if is_fragment else _WHOLE_PACKET
        ip = [_VERSIONS[4], _UNKNOWN, *length, _UNKNOWN, _UNKNOWN, *fragment]
        ip += [_UNKNOWN, protocol, _UNKNOWN, _UNKNOWN, *addresses]
    return RecordedHeader([*ip, *transport], total, len(ip))


def typical_headers() -> list[RecordedHeader]:
    """A header for each protocol: every bit that an event records may have any value."""
    flags = Ternary(0, 0xFF, 0xFF & ~_KNOWN_FLAGS)
    transports = {
        "tcp": [*[_ANY] * 12, _UNKNOWN, flags], "udp": [_ANY] * 4, "sctp": [_ANY] * 4, "icmp": [_ANY] * 2, "icmpv6": [_ANY] * 2,
    }  # fmt: skip
    return [
        _laid_out(family, [_ANY, _ANY], NUMBERS[name], [_ANY] * size, transport)
        for family, size in ((4, 8), (6, 32))
        for name, transport in transports.items()
    ]
