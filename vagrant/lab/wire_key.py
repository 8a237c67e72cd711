# SPDX-License-Identifier: Apache-2.0
"""What identifies a packet on the wire, read from an Ethernet frame; of a VXLAN packet the inner one."""

from __future__ import annotations

import socket
import struct
from typing import NamedTuple

ETHERNET_BYTES, UDP_BYTES, VXLAN_BYTES = 14, 8, 8
IPV4_TYPE = 0x0800
VXLAN_PORT = 8472
"""flannel's port: that of Linux, not IANA's 4789."""
PAYLOAD_BYTES = 16


class WireKey(NamedTuple):
    """The fields of an IPv4 packet that a receiver gets unchanged.

    seq, ack, flags: of TCP, else 0. sport, dport: of TCP and UDP, else 0. tunnel: the packet came in VXLAN. length: bytes from
    the IP header on. payload: the first bytes behind the header of TCP or UDP.
    """

    proto: int
    src: str
    sport: int
    dst: str
    dport: int
    ip_id: int
    length: int
    seq: int = 0
    ack: int = 0
    flags: int = 0
    payload: bytes = b""
    tunnel: bool = False


def key_of(frame: bytes) -> WireKey | None:
    """The key of the packet in an Ethernet frame; None: it is no IPv4, or cut off."""
    if len(frame) < ETHERNET_BYTES + 20 or struct.unpack_from("!H", frame, 12)[0] != IPV4_TYPE:
        return None
    head = (frame[ETHERNET_BYTES] & 0xF) * 4
    length, ip_id = struct.unpack_from("!HH", frame, ETHERNET_BYTES + 2)
    proto = frame[ETHERNET_BYTES + 9]
    src, dst = (socket.inet_ntoa(frame[ETHERNET_BYTES + at : ETHERNET_BYTES + at + 4]) for at in (12, 16))
    behind = frame[ETHERNET_BYTES + head : ETHERNET_BYTES + length]
    if proto == socket.IPPROTO_TCP and len(behind) >= 20:
        sport, dport, seq, ack, start, flags = struct.unpack_from("!HHIIBB", behind)
        payload = behind[(start >> 4) * 4 :][:PAYLOAD_BYTES]
        return WireKey(proto, src, sport, dst, dport, ip_id, length, seq, ack, flags, payload)
    if proto == socket.IPPROTO_UDP and len(behind) >= UDP_BYTES:
        sport, dport = struct.unpack_from("!HH", behind)
        if dport == VXLAN_PORT:
            inner = key_of(behind[UDP_BYTES + VXLAN_BYTES :])
            return inner._replace(tunnel=True) if inner else None
        return WireKey(proto, src, sport, dst, dport, ip_id, length, payload=behind[UDP_BYTES:][:PAYLOAD_BYTES])
    return WireKey(proto, src, 0, dst, 0, ip_id, length, payload=behind[:PAYLOAD_BYTES])
