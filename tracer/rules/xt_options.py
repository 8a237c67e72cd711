# SPDX-License-Identifier: Apache-2.0
"""The options of a match or target of iptables, as iptables-save prints them, made from its data in the kernel.

A match or target is one function here, found by its name and revision. It gets the data as the rule has it, and returns the
words that its `save` function in iptables prints, None = it has an option that is not known here.
Structures: include/uapi/linux/netfilter/xt_*.h; words: extensions/libxt_*.c and libipt_*.c of iptables.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Iterable

from tracer.util.octets import c_text

Printed = str | None
Printer = Callable[[bytes, str], Printed]
"""Gives the words of a match or target. Arguments: its data, the family ("ip" or "ip6")."""
Printers = dict[tuple[str, int], Printer]
_PLAIN = frozenset("_-0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
"""Characters of a text that is printed without quotes (xtables_save_string)."""


def match_options(name: str, revision: int, data: bytes, family: str) -> Printed:
    """The options of a match, "" = none; None = not known. family: "ip" or "ip6"."""
    return _options(_MATCHES.get((name, revision)), data, family)


def target_options(name: str, revision: int, data: bytes, family: str) -> Printed:
    """The options of a target that is no verdict and no chain, "" = none; None = not known. family: "ip" or "ip6"."""
    return _options(_TARGETS.get((name, revision)), data, family)


def has_options(extensions: Iterable[tuple[str, int]]) -> bool:
    """Whether the options of these matches and targets, by name and revision, are known, apart from rare ones."""
    return _KNOWN.issuperset(extensions)


def _options(printer: Printer | None, data: bytes, family: str) -> Printed:
    try:
        return printer(data, family) if printer else None
    except (struct.error, IndexError, ValueError):  # shorter than the structure
        return None


def inverted_by(bits: int) -> str:
    """What is printed before an inverted option."""
    return "! " if bits else ""


def is_word(text: str) -> bool:
    """Whether a name has only characters that are printed as they are, and that separate no words."""
    return text.isascii() and text.isprintable() and " " not in text


def format_address(family: str, number: int) -> str:
    """An address as the C library prints it."""
    size, kind = (4, socket.AF_INET) if family == "ip" else (16, socket.AF_INET6)
    return socket.inet_ntop(kind, number.to_bytes(size, "big"))


# ---- matches


def _range(low: int, high: int, separator: str = ":") -> str:
    return str(low) if low == high else f"{low}{separator}{high}"


def _port_words(ports: tuple[int, int, int, int], inverted: int) -> list[str] | None:
    words = []
    for name, low, high, bit in (("--sport", *ports[:2], 1), ("--dport", *ports[2:], 2)):
        if (low, high) != (0, 65535):
            words.append(f"{inverted_by(inverted & bit)}{name} {_range(low, high)}")
        elif inverted & bit:
            return None  # iptables before 1.8.10 does not print it
    return words


def _tcp(data: bytes, family: str) -> Printed:
    *ports, option, mask, flags, inverted = struct.unpack_from("<HHHHBBBB", data)
    if option or inverted & 8 or (mask | flags) & 0xC0:
        return None
    words = _port_words((ports[0], ports[1], ports[2], ports[3]), inverted)
    if words is None:
        return None
    if mask or inverted & 4:
        words.append(f"{inverted_by(inverted & 4)}--tcp-flags {_tcp_flags(mask)} {_tcp_flags(flags)}")
    return " ".join(words)


def _tcp_flags(flags: int) -> str:
    return ",".join(name for bit, name in enumerate(("FIN", "SYN", "RST", "PSH", "ACK", "URG")) if flags >> bit & 1) or "NONE"


def _udp(data: bytes, family: str) -> Printed:
    *ports, inverted = struct.unpack_from("<HHHHB", data)
    words = _port_words((ports[0], ports[1], ports[2], ports[3]), inverted)
    return None if words is None else " ".join(words)


def _icmp(option: str) -> Printer:
    def printed(data: bytes, family: str) -> Printed:
        kind, low, high, inverted = data[:4]
        if family == "ip" and kind == 0xFF:
            return f"{inverted_by(inverted & 1)}{option} any"
        return f"{inverted_by(inverted & 1)}{option} {kind}" + f"/{low}" * ((low, high) != (0, 0xFF))

    return printed


def multiport_parts(data: bytes) -> list[tuple[int, ...]]:
    """What match multiport compares a port with: one port, or the lowest and the highest port of a range."""
    count, ports, is_range = min(data[1], _MOST_PORTS), struct.unpack_from(f"<{_MOST_PORTS}H", data, 2), data[32:47]
    at, found = 0, list[tuple[int, ...]]()
    while at < count:
        size = 2 if is_range[at] and at + 1 < count else 1
        found.append(ports[at : at + size])
        at += size
    return found


_MOST_PORTS = 15


def _multiport(data: bytes, family: str) -> Printed:
    name = {0: "--sports", 1: "--dports", 2: "--ports"}.get(data[0])
    if name is None or data[1] > _MOST_PORTS:
        return None
    return f"{inverted_by(data[47])}{name} {','.join(':'.join(map(str, part)) for part in multiport_parts(data))}"


def _comment(data: bytes, family: str) -> Printed:
    text = c_text(data)
    if not text or not text.isprintable():
        return None
    if _PLAIN.issuperset(text):
        return f"--comment {text}"
    escaped = "".join(f"\\{c}" if c in "\"\\'" else c for c in text)
    return f'--comment "{escaped}"'


def _masked(value: int, mask: int) -> str:
    return f"{value:#x}" if mask == 0xFFFFFFFF else f"{value:#x}/{mask:#x}"


def _mark(data: bytes, family: str) -> Printed:
    value, mask, inverted = struct.unpack_from("<IIB", data)
    return f"{inverted_by(inverted)}--mark {_masked(value, mask)}"


def _addrtype(data: bytes, family: str) -> Printed:
    source, destination, flags = struct.unpack_from("<HHI", data)
    if (source | destination) >> len(_TYPES) or flags >> 4:
        return None
    words = [
        f"{inverted_by(flags & bit)}{name} {_types(found)}"
        for name, found, bit in (("--src-type", source, 1), ("--dst-type", destination, 2))
        if found
    ]
    words += ["--limit-iface-in"] * bool(flags & 4) + ["--limit-iface-out"] * bool(flags & 8)
    return " ".join(words) if words else None


_TYPES = (
    "UNSPEC", "UNICAST", "LOCAL", "BROADCAST", "ANYCAST", "MULTICAST", "BLACKHOLE", "UNREACHABLE", "PROHIBIT", "THROW", "NAT",
    "XRESOLVE",
)  # fmt: skip


def _types(found: int) -> str:
    return ",".join(name for bit, name in enumerate(_TYPES) if found >> bit & 1)


_STATES = {
    1 << 0: "INVALID", 1 << 3: "NEW", 1 << 2: "RELATED", 1 << 1: "ESTABLISHED", 1 << 8: "UNTRACKED", 1 << 6: "SNAT",
    1 << 7: "DNAT",
}  # fmt: skip
"""Names of the states of match conntrack, in the order in which iptables prints them."""
_CONNTRACK_STATE = 1
"""XT_CONNTRACK_STATE, the option of the match that tests the state."""
CONNTRACK_OPTIONS_AT = 146
"""Offset of match_flags in struct xt_conntrack_mtinfo1 to 3."""


def _conntrack(data: bytes, family: str) -> Printed:
    """Only a test of the state: that of other fields has no text here."""
    used, inverted, state = struct.unpack_from("<HHH", data, CONNTRACK_OPTIONS_AT)
    if used != _CONNTRACK_STATE or inverted & ~_CONNTRACK_STATE or not state or state & ~sum(_STATES):
        return None
    return f"{inverted_by(inverted)}--ctstate {','.join(name for bit, name in _STATES.items() if state & bit)}"


def _statistic(data: bytes, family: str) -> Printed:
    mode, flags, first, packet = struct.unpack_from("<HHII", data)
    if mode == 0:
        return f"--mode random {inverted_by(flags & 1)}--probability {first / 0x80000000:.11f}"
    return f"--mode nth {inverted_by(flags & 1)}--every {first + 1} --packet {packet}" if mode == 1 else None


def _nfacct(data: bytes, family: str) -> Printed:
    name = c_text(data[:32])
    return f"--nfacct-name  {name}" if is_word(name) else None  # two spaces, as iptables prints it


def _rpfilter(data: bytes, family: str) -> Printed:
    names = ("--loose", "--validmark", "--accept-local", "--invert")
    return None if data[0] >> len(names) else " ".join(name for bit, name in enumerate(names) if data[0] >> bit & 1)


def _physdev(data: bytes, family: str) -> Printed:
    inverted, bitmask = data[64], data[65]
    if bitmask & _PHYSDEV_NAMES:
        return None
    words = [
        f"{inverted_by(inverted & bit)}{name}"
        for name, bit in (("--physdev-is-in", 8), ("--physdev-is-out", 16), ("--physdev-is-bridged", 4))
        if bitmask & bit
    ]
    return " ".join(words) if len(words) == 1 else None


_PHYSDEV_NAMES = 1 | 2


# ---- targets


_MAP_ADDRESSES, _MAP_PORTS, _RANDOM, _PERSISTENT, _FULLY_RANDOM = 1, 2, 4, 8, 16
"""NF_NAT_RANGE_*."""


def _translation(option: str, family: str, flags: int, low: bytes, high: bytes, ports: tuple[int, int]) -> Printed:
    """The options of DNAT or SNAT to a range of addresses and ports."""
    known = _MAP_ADDRESSES | _MAP_PORTS | _RANDOM | _PERSISTENT | _FULLY_RANDOM
    if flags & ~known or not flags & (_MAP_ADDRESSES | _MAP_PORTS):
        return None
    where, size = "", 4 if family == "ip" else 16
    if flags & _MAP_ADDRESSES:
        first, last = (format_address(family, int.from_bytes(raw[:size], "big")) for raw in (low, high))
        where = first if first == last else f"{first}-{last}"
        if family == "ip6" and flags & _MAP_PORTS:
            where = f"[{where}]"
    if flags & _MAP_PORTS:
        where += f":{_range(*ports, '-')}"
    return " ".join([f"{option} {where}", *_random_words(flags), *["--persistent"] * bool(flags & _PERSISTENT)])


def _random_words(flags: int) -> list[str]:
    return ["--random"] * bool(flags & _RANDOM) + ["--random-fully"] * bool(flags & _FULLY_RANDOM)


def _nat(option: str) -> Printer:
    """Targets DNAT and SNAT of revision 1, and DNAT of revision 2: struct nf_nat_range."""

    def printed(data: bytes, family: str) -> Printed:
        flags = int.from_bytes(data[:4], "little")
        return _translation(option, family, flags, data[4:20], data[20:36], struct.unpack_from(">HH", data, 36))

    return printed


def _one_range(data: bytes) -> tuple[int, bytes, bytes, tuple[int, int]] | None:
    """The only range of struct nf_nat_ipv4_multi_range_compat: flags, first and last address, ports."""
    count, flags = struct.unpack_from("<II", data)
    return (flags, data[8:12], data[12:16], struct.unpack_from(">HH", data, 16)) if count == 1 else None


def _nat4(option: str) -> Printer:
    """Targets DNAT and SNAT of revision 0, IPv4."""

    def printed(data: bytes, family: str) -> Printed:
        found = _one_range(data)
        return _translation(option, family, *found) if found and family == "ip" else None

    return printed


def _to_ports(known: int) -> Printer:
    """Targets MASQUERADE and REDIRECT. known: the flags that iptables prints of it."""

    def printed(data: bytes, family: str) -> Printed:
        found = _local_range(data, family)
        if found is None or found[0] & ~known:
            return None
        flags, ports = found
        return " ".join([*[f"--to-ports {_range(*ports, '-')}"] * bool(flags & _MAP_PORTS), *_random_words(flags)])

    return printed


def _local_range(data: bytes, family: str) -> tuple[int, tuple[int, int]] | None:
    """Flags and ports of a target without an address."""
    if family == "ip6":
        return int.from_bytes(data[:4], "little"), struct.unpack_from(">HH", data, 36)
    found = _one_range(data)
    return (found[0], found[3]) if found else None


def _set_mark(data: bytes, family: str) -> Printed:
    value, mask = struct.unpack_from("<II", data)
    return f"--set-xmark {value:#x}/{mask:#x}"


def _connmark(data: bytes, family: str) -> Printed:
    value, mask, packet_mask, _, shift, mode = struct.unpack_from("<IIIBBB", data)
    if shift:
        return None
    if mode == 0:
        return f"--set-xmark {value:#x}/{mask:#x}"
    name = {1: "--save-mark", 2: "--restore-mark"}.get(mode)
    return f"{name} --nfmask {packet_mask:#x} --ctmask {mask:#x}" if name else None


def _reject(data: bytes, family: str) -> Printed:
    name = _REJECTED[family].get(int.from_bytes(data[:4], "little"))
    return f"--reject-with {name}" if name else None


_REJECTED = {
    "ip": {
        0: "icmp-net-unreachable", 1: "icmp-host-unreachable", 2: "icmp-proto-unreachable", 3: "icmp-port-unreachable",
        5: "icmp-net-prohibited", 6: "icmp-host-prohibited", 7: "tcp-reset", 8: "icmp-admin-prohibited",
    },
    "ip6": {
        0: "icmp6-no-route", 1: "icmp6-adm-prohibited", 3: "icmp6-addr-unreachable", 4: "icmp6-port-unreachable",
        6: "tcp-reset", 7: "icmp6-policy-fail", 8: "icmp6-reject-route",
    },
}  # fmt: skip


def _nothing(data: bytes, family: str) -> Printed:
    return ""


_MATCHES: Printers = {
    ("comment", 0): _comment,
    ("mark", 1): _mark,
    ("tcp", 0): _tcp,
    ("udp", 0): _udp,
    ("icmp", 0): _icmp("--icmp-type"),
    ("icmp6", 0): _icmp("--icmpv6-type"),
    ("multiport", 1): _multiport,
    ("addrtype", 1): _addrtype,
    ("conntrack", 2): _conntrack,
    ("conntrack", 3): _conntrack,
    ("statistic", 0): _statistic,
    ("nfacct", 0): _nfacct,
    ("rpfilter", 0): _rpfilter,
    ("physdev", 0): _physdev,
}
_TARGETS: Printers = {
    ("DNAT", 0): _nat4("--to-destination"),
    ("DNAT", 1): _nat("--to-destination"),
    ("DNAT", 2): _nat("--to-destination"),
    ("SNAT", 0): _nat4("--to-source"),
    ("SNAT", 1): _nat("--to-source"),
    ("MASQUERADE", 0): _to_ports(_MAP_PORTS | _RANDOM | _FULLY_RANDOM),
    ("REDIRECT", 0): _to_ports(_MAP_PORTS | _RANDOM),
    ("MARK", 2): _set_mark,
    ("CONNMARK", 2): _connmark,
    ("REJECT", 0): _reject,
    ("TRACE", 0): _nothing,
}
_KNOWN = _MATCHES.keys() | _TARGETS.keys() | {("", 0), ("ERROR", 0)}
"""With the standard target, and with what stands before each chain."""
