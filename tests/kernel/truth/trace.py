# SPDX-License-Identifier: Apache-2.0
"""nftables' own trace, read from its netlink messages: the rules that acted on each packet."""

from __future__ import annotations

import errno
import ipaddress
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tracer.model.rule import NFT_FAMILIES
from tracer.node.nfnetlink import Message, Nfnetlink, attributes, number, text

_GROUP, _TRACE = 9, 17
MOST_RUNS = 50_000
"""Runs of chains between two readings: more mean that packets circulate."""
_POLICY = 1
_WORDS = {0: "DROP", 1: "ACCEPT", 2: "STOLEN", 3: "QUEUE", 0xFFFFFFFF: "CONTINUE", 0xFFFFFFFB: "RETURN"}
_JUMPS = {0xFFFFFFFD: "JUMP", 0xFFFFFFFC: "GOTO"}
_WITH_PORTS = (6, 17)

TABLE = "truth"
DEVICE_TABLE = "truth-device"
ON = """table inet truth {
  chain pre { type filter hook prerouting priority -500; meta nftrace set 1; }
  chain out { type filter hook output priority -500; meta nftrace set 1; }
}
"""
"""The kernel traces every packet from its first hook on."""
ON_DEVICE = """table netdev truth-device {
  chain in { type filter hook ingress device "%s" priority -500; meta nftrace set 1; }
}
"""
"""The same for packets received by a device."""

Step = tuple[str, int, str]
"""Chain, handle of the rule (0: the policy), what it did."""
Header = tuple[str, str, int, int, int]
"""Source, destination, protocol, source port or ICMP id, destination port or ICMP type << 8 | code. What the kernel's account
leaves open, for fragments, cut headers and after IPv6's extension headers, is UNKNOWN. An address of which it has only the
beginning is written as a network; "::/0" is any."""
UNKNOWN = -1


@dataclass
class Run:
    """One run of one base chain over one packet."""

    family: str
    table: str
    header: Header
    steps: list[Step] = field(default_factory=list)


def _address(raw: bytes) -> str:
    return str(ipaddress.ip_address(raw))


ECHOES = frozenset({0, 8, 128, 129})
"""Types of ICMP and ICMPv6 messages that carry an id."""


def header(network: bytes, transport: bytes) -> Header:
    """Addresses, protocol and ports, from the first bytes of both headers."""
    is_later_fragment = False
    if network[0] >> 4 == 4:
        src, dst, protocol = network[12:16], network[16:20], network[9]
        is_later_fragment = bool(struct.unpack_from(">H", network, 6)[0] & 0x1FFF)
    else:
        src, dst, protocol = network[8:24], network[24:40], network[6]
    sport = dport = UNKNOWN
    if protocol not in (*_WITH_PORTS, 1, 58):
        protocol = UNKNOWN
    elif is_later_fragment:
        pass
    elif protocol in _WITH_PORTS and len(transport) >= 4:
        sport, dport = struct.unpack_from(">HH", transport)
    elif protocol in (1, 58) and len(transport) >= 8:
        kind, code, _, ident = struct.unpack_from(">BBHH", transport)
        sport, dport = ident if kind in ECHOES else 0, kind << 8 | code
    return _address(src), _address(dst), protocol, sport, dport


def _later_fragment(start: bytes) -> Header:
    """A further fragment of IPv6 before reassembly. The kernel does not know where its transport header is,
    assumes offset 0, and so sends no network header, but the first 20 bytes of the packet as the transport header
    (nft_set_pktinfo_ipv6: ipv6_find_hdr leaves thoff alone for such a fragment; nf_trace_fill_pkt_info)."""
    source = f"{_address(start[8:20] + bytes(4))}/96" if len(start) == 20 and start[0] >> 4 == 6 else "::/0"
    return source, "::/0", UNKNOWN, UNKNOWN, UNKNOWN


class Listener:
    """The messages of this namespace's trace. lost: the kernel could not deliver some, so nothing may be concluded."""

    def __init__(self) -> None:
        self._socket = Nfnetlink(_GROUP, 64 << 20)
        self._open: dict[tuple[int, int, str], Run] = {}
        self.lost = False

    def read(self, seconds: float) -> list[Run]:
        """All runs that have come, once nothing more comes for `seconds`. At most MOST_RUNS, else AssertionError."""
        runs: list[Run] = []
        while True:
            assert len(runs) < MOST_RUNS, "packets come without end"
            try:
                messages = self._socket.listen(seconds)
            except OSError as e:
                if e.errno != errno.ENOBUFS:
                    raise
                self.lost = True
                continue
            if not messages:
                return runs
            for message in messages:
                if message[0] == _TRACE:
                    self._take(message, runs)

    def _take(self, message: Message, runs: list[Run]) -> None:
        _, family, raw = message
        a = attributes(raw)
        key = number(a.get(6)), family, text(a.get(1))
        if 8 in a and a[8][0] >> 4 not in (4, 6):  # a device's chain meets ARP, too
            self._open.pop(key, None)
        elif 8 in a or 9 in a:  # the first message of a run has the headers
            run_header = header(a[8], a.get(9, b"")) if 8 in a else _later_fragment(a[9])
            run = Run(NFT_FAMILIES.get(family, str(family)), key[2], run_header)
            self._open[key] = run
            runs.append(run)
        step = _step(a)
        if step and key in self._open:
            self._open[key].steps.append(step)

    def close(self) -> None:
        self._socket.close()


def _step(a: dict[int, bytes]) -> Step | None:
    """The step that a message reports; None for the end of a chain, where no rule acted."""
    kind, chain = number(a.get(4)), text(a.get(2))
    if kind == _POLICY:
        return chain, 0, _WORDS[number(a.get(16))]
    verdict = attributes(a.get(5, b""))
    code = number(verdict.get(1))
    if 3 not in a:
        return None
    word = f"{_JUMPS[code]} {text(verdict.get(2))}" if code in _JUMPS else _WORDS.get(code, "QUEUE")
    return chain, number(a.get(3)), word


@contextmanager
def listening(device: str = "") -> Iterator[Listener]:
    """Within the block, the kernel traces all packets of this thread's namespace. device: also packets received by it."""
    on = ON + (ON_DEVICE % device if device else "")
    subprocess.run(["nft", "-f", "-"], input=on, text=True, check=True)
    listener = Listener()
    try:
        yield listener
    finally:
        listener.close()
