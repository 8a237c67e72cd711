# SPDX-License-Identifier: Apache-2.0
"""Tests whether an ipset has a packet's address or port, by one request to the kernel per set; no set is listed."""

from __future__ import annotations

from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from socket import AF_INET, AF_INET6
from typing import Any

from tracer.rules.match_context import address_text
from tracer.rules.packet_view import PacketView

KINDS = frozenset({"ip", "net", "port"})
"""Parts of an element that are known from a packet's header. Sets of interfaces, marks, hardware addresses or sets are not
tested."""


class IpSetReader:
    """The ipsets of this process's network namespace, and the lists of -m recent.

    Answers of sets are cached; a new reader is needed for a later time.
    """

    def __init__(self, proc: Path = Path("/proc/net")) -> None:
        self._answers: dict[tuple[object, ...], bool | None] = {}
        self._proc = proc

    def recently(self, name: str, address: str) -> bool | None:
        """Whether a list of -m recent has the address: False = no; None = yes, but the entry may be too old, or not known."""
        try:
            lines = (self._proc / "xt_recent" / name).read_text(encoding="ascii").splitlines()
        except OSError:
            return None
        written = (line.partition("src=")[2].split(" ")[0] for line in lines)
        return None if ip_address(address) in {ip_address(w) for w in written if w} else False

    def has(self, name: str, flags: tuple[str, ...], packet: PacketView) -> bool | None:
        """The result of `-m set --match-set NAME FLAGS`; None = not known.

        Must be used only if a rule names a set, for then the kernel has ipset loaded.

        Args:
            name: The set.
            flags: "src" or "dst" for each part of an element.
            packet: The packet.
        """
        key = name, flags, packet.family, packet.src, packet.dst, packet.sport, packet.dport, packet.protocol
        if key not in self._answers:
            self._answers[key] = None
            with suppress(Exception):  # pyroute2 raises many kinds
                self._answers[key] = _ask(name, flags, packet)
        return self._answers[key]


def _ask(name: str, flags: tuple[str, ...], packet: PacketView) -> bool | None:
    from pyroute2.ipset import IPSet, PortEntry

    family = AF_INET6 if packet.family == "ip6" else AF_INET
    with IPSet(nfgen_family=family) as ipset:
        kind = dict(next(iter(ipset.headers(name)))["attrs"])["IPSET_ATTR_TYPENAME"].partition(":")[2]
        parts = kind.split(",")
        if not KINDS.issuperset(parts) or len(flags) < len(parts):
            return None
        entry: list[Any] = []
        for part, flag in zip(parts, flags, strict=False):
            if part != "port":
                entry.append(address_text(packet.src if flag == "src" else packet.dst, packet.family))
                continue
            port = packet.sport if flag == "src" else packet.dport
            if not port:
                return None  # the source port is not known
            # A bitmap of ports has no protocol.
            entry.append(PortEntry(port, protocol=packet.protocol) if len(parts) > 1 else port)
        return bool(ipset.test(name, tuple(entry) if len(entry) > 1 else entry[0], family=family, etype=kind))
