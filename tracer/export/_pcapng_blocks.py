# SPDX-License-Identifier: Apache-2.0
"""The blocks of a pcapng file, with the options that are used here (draft-ietf-opsawg-pcapng, sections 3 and 4).

scapy's writer has no time resolution, packet identity or name resolution.
"""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Iterable, Mapping

SECTION_HEADER, INTERFACE_DESCRIPTION, NAME_RESOLUTION, ENHANCED_PACKET = 0x0A0D0D0A, 1, 4, 6
"""Types of blocks."""
COMMENT = 1
SHB_OS, SHB_USERAPPL = 3, 4
IF_NAME, IF_TSRESOL = 2, 9
EPB_PACKETID = 5
"""Codes of options. The same epb_packetid says that packets of several interfaces are one packet."""
LINKTYPE_RAW = 101
"""Link type for IPv4 and IPv6; the packet's first bits tell which."""
LONGEST = 0xFFFF
"""Maximum length of an option's value, bytes."""
_RECORD_IPV4, _RECORD_IPV6, _RECORD_END = 1, 2, 0

Option = tuple[int, bytes]


def section_header(system: str, program: str, comment: str) -> bytes:
    """The first block. system: the traced kernel; program: what writes the file."""
    # The byte order, the version of the format, and the length of the section, which is not known.
    fixed = struct.pack("<IHHq", 0x1A2B3C4D, 1, 0, -1)
    return _block(SECTION_HEADER, fixed, [(SHB_OS, _text(system)), (SHB_USERAPPL, _text(program)), (COMMENT, _text(comment))])


def interface(name: str) -> bytes:
    """An interface with times in ns. Interfaces are numbered in the order of their blocks, from 0."""
    return _block(
        INTERFACE_DESCRIPTION, struct.pack("<HHI", LINKTYPE_RAW, 0, 0), [(IF_NAME, _text(name)), (IF_TSRESOL, b"\x09")]
    )


def packet(interface: int, time: int, data: bytes, length: int, identity: int, comment: str) -> bytes:
    """A packet.

    Args:
        interface: Number of its interface.
        time: ns since the epoch.
        data: Its first bytes.
        length: Its real length, bytes.
        identity: The same for all copies of the packet in the file.
        comment: Text; lines end with a newline.
    """
    fixed = struct.pack("<IIIII", interface, time >> 32 & 0xFFFFFFFF, time & 0xFFFFFFFF, len(data), length) + _padded(data)
    return _block(ENHANCED_PACKET, fixed, [(EPB_PACKETID, struct.pack("<Q", identity)), (COMMENT, _text(comment))])


def names(by_address: Mapping[str, str]) -> bytes:
    """The names of addresses."""
    records = b""
    for address, name in by_address.items():
        packed = ipaddress.ip_address(address).packed
        kind = _RECORD_IPV4 if len(packed) == 4 else _RECORD_IPV6
        value = packed + _text(name)[: LONGEST - 17] + b"\0"
        records += struct.pack("<HH", kind, len(value)) + _padded(value)
    return _block(NAME_RESOLUTION, records + struct.pack("<HH", _RECORD_END, 0), [])


def _block(kind: int, fixed: bytes, options: Iterable[Option]) -> bytes:
    body = fixed
    written = [struct.pack("<HH", code, len(value)) + _padded(value) for code, value in options if value]
    if written:
        body += b"".join(written) + struct.pack("<HH", 0, 0)
    length = struct.pack("<I", len(body) + 12)
    return struct.pack("<I", kind) + length + body + length


def _padded(data: bytes) -> bytes:
    return data + b"\0" * (-len(data) % 4)


def _text(text: str) -> bytes:
    """UTF-8 of at most LONGEST bytes, without a cut character."""
    data = text.encode("utf-8", "backslashreplace")
    return data if len(data) <= LONGEST else data[:LONGEST].decode("utf-8", "ignore").encode()
