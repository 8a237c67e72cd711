# SPDX-License-Identifier: Apache-2.0
"""Reads the packets of a tcpdump file as tuples that can be compared."""

from __future__ import annotations

import socket
import struct
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

Seen = tuple[str, str, int, str, int, int]
"""Protocol, source, source port, destination, destination port, and a number that distinguishes repetitions: TCP's sequence
number, else the IP length."""

_ETHERNET, _COOKED2 = 1, 276


def read(path: Path) -> list[Seen]:
    """The IPv4 and IPv6 TCP, UDP and ICMP packets of a pcap file, in order."""
    return [seen for seen in map(_packet, raw(path)) if seen]


def raw(path: Path) -> list[bytes]:
    """The bytes after the link header of each frame of a pcap file."""
    data = path.read_bytes()
    magic, link = struct.unpack_from("<I16xI", data)
    assert magic in (0xA1B2C3D4, 0xA1B23C4D), hex(magic)
    skip = {_ETHERNET: 14, _COOKED2: 20}[link]
    out, at = [], 24
    while at + 16 <= len(data):
        (length,) = struct.unpack_from("<I", data, at + 8)
        out.append(data[at + 16 + skip : at + 16 + length])
        at += 16 + length
    return out


def without_sums(ip: bytes) -> bytes:
    """An IPv4 packet with its checksums set to zero: a checksum may be filled in only at the end of the path."""
    at = {6: 36, 17: 26}[ip[9]]
    return ip[:10] + bytes(2) + ip[12:at] + bytes(2) + ip[at + 2 :]


def _packet(ip: bytes) -> Seen | None:
    if ip[0] >> 4 == 4:
        length, protocol = struct.unpack_from(">H", ip, 2)[0], ip[9]
        src, dst = (socket.inet_ntop(socket.AF_INET, ip[i : i + 4]) for i in (12, 16))
        rest = ip[(ip[0] & 15) * 4 :]
    elif ip[0] >> 4 == 6:
        length, protocol = struct.unpack_from(">H", ip, 4)[0] + 40, ip[6]
        src, dst = (socket.inet_ntop(socket.AF_INET6, ip[i : i + 16]) for i in (8, 24))
        rest = ip[40:]
    else:
        return None
    if protocol == 6:
        sport, dport, seq = struct.unpack_from(">HHI", rest)
        return "TCP", src, sport, dst, dport, seq
    if protocol == 17:
        sport, dport = struct.unpack_from(">HH", rest)
        return "UDP", src, sport, dst, dport, length
    if protocol in (1, 58) and rest[0] not in (133, 134, 135, 136, 143):  # neighbour discovery is not traffic
        return "ICMP" if protocol == 1 else "ICMPv6", src, 0, dst, 0, length
    return None


@contextmanager
def tcpdump(path: Path, interface: str, netns: str | None = None, expression: str = "", snaplen: int = 128) -> Iterator[None]:
    """Captures into `path` during the block; returns once tcpdump listens. snaplen: bytes of a frame, 0 = all."""
    inside = ["ip", "netns", "exec", netns] if netns else []
    command = [
        *inside,
        "tcpdump",
        "--immediate-mode",
        "-i",
        interface,
        "-U",
        "-n",
        "-s",
        str(snaplen),
        "-w",
        str(path),
        *expression.split(),
    ]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr
        for line in process.stderr:
            if "listening on" in line:
                break
        try:
            yield
            time.sleep(0.5)
        finally:
            process.terminate()
