# SPDX-License-Identifier: Apache-2.0
"""Encodes the header, matches and target of a rule as the kernel lays them out (tracer/rules/iptables/matches.py).

Only matches and targets that the engine computes are encoded, by name and revision. The options of all others are kept as text.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from ipaddress import ip_network

from tracer.rules.iptables.entry import (
    INV_DST,
    INV_FRAGMENT,
    INV_IN,
    INV_OUT,
    INV_PROTOCOL,
    INV_SRC,
    Extension,
    TableHeader,
)
from tracer.rules.iptables.rule_parser import Option, format_options
from tracer.util.octets import encoded

TEXT_REVISION = -1
"""Revision of a match or target that is kept as text."""
_PROTOCOLS = {
    "all": 0, "icmp": 1, "igmp": 2, "ipencap": 4, "ipv4": 4, "tcp": 6, "udp": 17, "dccp": 33, "ipv6": 41, "gre": 47, "esp": 50,
    "ah": 51, "icmpv6": 58, "ipv6-icmp": 58, "eigrp": 88, "ospf": 89, "ospfigp": 89, "ipip": 94, "pim": 103, "ipcomp": 108,
    "vrrp": 112, "l2tp": 115, "sctp": 132, "ipv6-mh": 135, "mh": 135, "udplite": 136,
}  # fmt: skip
"""Numbers by the names that iptables-save prints: its own, and those of /etc/protocols of Debian and Fedora."""
_FLAGS = {"FIN": 1, "SYN": 2, "RST": 4, "PSH": 8, "ACK": 16, "URG": 32, "ALL": 63, "NONE": 0}
_FACES = {"-i": INV_IN, "-o": INV_OUT}

MATCH_ALL = TableHeader(0, 0, 0, 0, 0, 0, 0, 0, 0, True, False, 0)
"""The header of a rule that tests no address, interface or protocol."""


def header(options: list[Option], family: str) -> TableHeader:
    """Encodes the options before the first -m. Raises ValueError for an unknown one."""
    net, faces, inverted = {"-s": (0, 0), "-d": (0, 0)}, {"-i": (0, 0), "-o": (0, 0)}, 0
    protocol, fragment = 0, False
    for name, negated, values in options:
        if name in net:
            network = ip_network(values[0], strict=False)
            net[name] = int(network.network_address), int(network.netmask)
            inverted |= negated * (INV_SRC if name == "-s" else INV_DST)
        elif name in faces:
            faces[name] = _face(values[0])
            inverted |= negated * _FACES[name]
        elif name == "-p":
            protocol = _PROTOCOLS.get(values[0].lower(), int(values[0]) if values[0].isdigit() else -1)
            if protocol < 0:
                raise ValueError(f"protocol {values[0]}")
            inverted |= negated * INV_PROTOCOL
        elif name == "-f":
            fragment = True
            inverted |= negated * INV_FRAGMENT
        else:
            raise ValueError(name)
    return TableHeader(*net["-s"], *net["-d"], *faces["-i"], *faces["-o"], protocol, not protocol, fragment, inverted)


def _face(name: str) -> tuple[int, int]:
    """An interface name and its mask, 16 bytes each as a number; "cni+" tests a prefix."""
    length = len(name) - 1 if name.endswith("+") else len(name) + 1
    raw = encoded(name.rstrip("+")).ljust(16, b"\0")
    return int.from_bytes(raw, "big"), int.from_bytes((b"\xff" * length).ljust(16, b"\0"), "big")


def match(name: str, options: list[Option], at: int) -> Extension:
    """Encodes one -m with its options. `at`: offset in the table."""
    made = _MATCHES.get(name)
    if made:
        revision, pack = made
        data = pack(options)
        if data is not None:
            return Extension(name, revision, at, data)
    return Extension(name, TEXT_REVISION, at, encoded(format_options(options)))


def _ports(value: str) -> tuple[int, int]:
    low, colon, high = value.partition(":")
    return int(low or 0), int(high or 65535) if colon else int(low)


def _of_ports(options: list[Option], rest: Callable[[list[Option]], bytes | None]) -> bytes | None:
    """Encodes source and destination ports, then other options by `rest`, then the inverted bits; None if `rest` gives None."""
    src, dst, inverted, others = (0, 65535), (0, 65535), 0, []
    for option in options:
        name, negated, values = option
        if name == "--sport":
            src, inverted = _ports(values[0]), inverted | negated
        elif name == "--dport":
            dst, inverted = _ports(values[0]), inverted | negated << 1
        else:
            others.append(option)
            inverted |= negated << 2
    middle = rest(others)
    return None if middle is None else struct.pack("<HHHH", *src, *dst) + middle + bytes([inverted])


def _tcp(options: list[Option]) -> bytes | None:
    def rest(others: list[Option]) -> bytes | None:
        mask = flags = 0
        for name, _, values in others:
            if name != "--tcp-flags":
                return None
            mask, flags = (sum(_FLAGS[f] for f in value.split(",")) for value in values)
        return bytes([0, mask, flags])

    return _of_ports(options, rest)


def _udp(options: list[Option]) -> bytes | None:
    return _of_ports(options, lambda others: None if others else b"")


def _multiport(options: list[Option]) -> bytes | None:
    ((name, negated, values),) = options
    which = {"--sports": 0, "--dports": 1, "--ports": 2}.get(name)
    if which is None:
        return None
    ports, ranges = [], []
    for word in values[0].split(","):
        low, colon, high = word.partition(":")
        ports += [int(low), int(high)] if colon else [int(low)]
        ranges += [1, 0] if colon else [0]
    numbers = struct.pack("<15H", *ports, *[0] * (15 - len(ports)))
    return bytes([which, len(ports)]) + numbers + bytes(ranges).ljust(15, b"\0") + bytes([negated])


def _mark(options: list[Option]) -> bytes | None:
    ((_, negated, values),) = options
    return struct.pack("<IIB", *_masked(values[0]), negated)


def _masked(value: str) -> tuple[int, int]:
    number, slash, mask = value.partition("/")
    return int(number, 0), int(mask, 0) if slash else 0xFFFFFFFF


def _icmp(options: list[Option]) -> bytes | None:
    ((_, negated, values),) = options
    kind, slash, code = values[0].partition("/")
    if kind == "any":
        return bytes([0xFF, 0, 0xFF, negated])
    if not kind.isdigit():
        return None
    return bytes([int(kind), int(code) if slash else 0, int(code) if slash else 0xFF, negated])


def _comment(options: list[Option]) -> bytes:
    return encoded(" ".join(options[0][2])) + b"\0"


_MATCHES: dict[str, tuple[int, Callable[[list[Option]], bytes | None]]] = {
    "comment": (0, _comment), "mark": (1, _mark), "tcp": (0, _tcp), "udp": (0, _udp), "multiport": (1, _multiport),
    "icmp": (0, _icmp), "icmp6": (0, _icmp),
}  # fmt: skip
"""Revision and encoder of the matches that can be computed. An encoder returns None for an option that it does not know."""


def target(name: str, options: list[Option], at: int) -> Extension:
    """Encodes a target that is neither a verdict nor a chain. `at`: offset in the table."""
    if name == "MARK" and [o[0] for o in options] == ["--set-xmark"]:
        return Extension(name, 2, at, struct.pack("<II", *_masked(options[0][2][0])))
    return Extension(name, TEXT_REVISION, at, encoded(format_options(options)))
