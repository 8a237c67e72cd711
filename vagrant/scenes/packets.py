# SPDX-License-Identifier: Apache-2.0
"""Raw TCP segments that belong to no connection: segments that are INVALID for conntrack, or a single SYN.

conntrack takes an ACK without a connection as part of a connection with an unseen start (nf_conntrack_tcp_loose); a SYN-ACK, a
RST or a FIN without a connection is INVALID, and kube-proxy's KUBE-FORWARD drops it.
"""

from __future__ import annotations

import socket
import struct
from ipaddress import ip_address

from scenes.netns import entered
from scenes.servers import HTTP_PORT
from scenes.topology import CLIENT, CLIENT4, PODS

FIN, SYN, RST, PSH, ACK = 0x01, 0x02, 0x04, 0x08, 0x10


def send_tcp(
    dst: str = PODS[0].addr4,
    dport: int = HTTP_PORT,
    *,
    src: str = CLIENT4,
    sport: int = 45678,
    flags: int = SYN | ACK,
    count: int = 1,
    ns: str | None = CLIENT,
    options: bytes = b"",
    spoil: int = 0,
    seq: int = 1000,
    ack: int = 1,
) -> None:
    """Send `count` segments without payload, IPv4 or IPv6 as `dst` is; each has another sequence number.

    The node forwards segments from the client to a pod's address; src need not be the sender's own address. options: TCP
    options, in words of four bytes. spoil: added to the checksum, to make it wrong. seq: sequence number of the first segment.
    ack: number that segments with ACK acknowledge.
    """
    source, target = ip_address(src), ip_address(dst)
    family = socket.AF_INET if target.version == 4 else socket.AF_INET6
    with entered(ns):
        sock = socket.socket(family, socket.SOCK_RAW, socket.IPPROTO_RAW)
    with sock:
        for n in range(count):
            tcp = _tcp(source.packed, target.packed, sport, dport, (seq + n) & 0xFFFFFFFF, flags, options, spoil, ack)
            if target.version == 4:
                # the kernel fills in length, id and checksum
                head = struct.pack(
                    "!BBHHHBBH4s4s",
                    0x45,
                    0,
                    20 + len(tcp),
                    0,
                    0,
                    64,
                    socket.IPPROTO_TCP,
                    0,
                    source.packed,
                    target.packed,
                )
            else:
                head = struct.pack("!IHBB16s16s", 6 << 28, len(tcp), socket.IPPROTO_TCP, 64, source.packed, target.packed)
            sock.sendto(head + tcp, (dst, 0))


def _tcp(
    src: bytes, dst: bytes, sport: int, dport: int, seq: int, flags: int, options: bytes = b"", spoil: int = 0, number: int = 1
) -> bytes:
    """A TCP header with its checksum; src and dst in network order. number: that it acknowledges, if it has ACK."""
    ack = number if flags & ACK else 0
    bare = struct.pack("!HHIIBBHHH", sport, dport, seq, ack, (5 + len(options) // 4) << 4, flags, 64240, 0, 0) + options
    # the 32-bit length and protocol of IPv6's pseudo header have the same sum as IPv4's
    total = sum(struct.unpack(f"!{(2 * len(src) + len(bare)) // 2}H", src + dst + bare)) + socket.IPPROTO_TCP + len(bare)
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return bare[:16] + struct.pack("!H", (~total + spoil) & 0xFFFF) + bare[18:]
