# SPDX-License-Identifier: Apache-2.0
"""Whether an ipset has a packet's address or port in it: asked from the kernel, one question a set; nothing is listed."""

from __future__ import annotations

from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from socket import AF_INET, AF_INET6
from typing import Any

from tracer.rules.match_context import address_text
from tracer.rules.packet_view import PacketView

KINDS = frozenset({"ip", "net", "port"})
"""Parts of an element that a packet's header tells. A set of interfaces, marks, hardware addresses or sets is not asked."""


class IpSetReader:
    """The ipsets of this process's network namespace, and the lists of -m recent. Answers of sets are kept: ask a new one for
    later times.
    """

    def __init__(self, proc: Path = Path("/proc/net")) -> None:
        self._told: dict[tuple[object, ...], bool | None] = {}
        self._proc = proc

    def recently(self, name: str, address: str) -> bool | None:
        """Whether a list of -m recent has the address: False when it has not; None when it has, for the entry may be too old,
        or when the list cannot be read.
        """
        try:
            lines = (self._proc / "xt_recent" / name).read_text(encoding="ascii").splitlines()
        except OSError:
            return None
        written = (line.partition("src=")[2].split(" ")[0] for line in lines)
        return None if ip_address(address) in {ip_address(w) for w in written if w} else False

    def has(self, name: str, flags: tuple[str, ...], packet: PacketView) -> bool | None:
        """As `-m set --match-set NAME FLAGS` does; flags: "src" or "dst" for each part. None when that cannot be told.

        Only asked where a rule names a set: the kernel has ipset loaded then.
        """
        key = name, flags, packet.family, packet.src, packet.dst, packet.sport, packet.dport, packet.protocol
        if key not in self._told:
            self._told[key] = None
            with suppress(Exception):  # pyroute2 raises many kinds
                self._told[key] = _ask(name, flags, packet)
        return self._told[key]


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
                return None  # a source port that was not given
            # A bitmap of ports knows no protocol.
            entry.append(PortEntry(port, protocol=packet.protocol) if len(parts) > 1 else port)
        return bool(ipset.test(name, tuple(entry) if len(entry) > 1 else entry[0], family=family, etype=kind))
