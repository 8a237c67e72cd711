# SPDX-License-Identifier: Apache-2.0
"""The packet of a prediction: the first one of a new connection."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_address

from tracer.errors import BadOption
from tracer.model.filter import PROTOCOLS

WITH_PORTS = frozenset({"tcp", "udp", "sctp"})


@dataclass(frozen=True)
class PathQuery:
    """The packet of a prediction.

    Attributes:
        src: Source address.
        sport: Source port, 0 = any.
        dst: Destination address.
        dport: Destination port.
        protocol: "tcp", "udp", "sctp", "icmp", "icmpv6".
        arrives: Input interface, "" = the interface by which the source is reached.
    """

    src: str
    sport: int
    dst: str
    dport: int
    protocol: str = "tcp"
    arrives: str = ""

    @property
    def family(self) -> str:
        return "ip6" if ":" in self.dst else "ip"

    @property
    def number(self) -> int:
        return PROTOCOLS[self.protocol]


def parse(source: str, target: str, protocol: str, arrives: str = "") -> PathQuery:
    """Parses a query as typed: A or A:PORT, B:PORT, IPv6 addresses in brackets. Raises BadOption."""
    (src, sport), (dst, dport) = _end(source, "--from"), _end(target, "--to")
    if (":" in src) != (":" in dst):
        raise BadOption(f"--from {source} and --to {target} are not of one family.")
    if protocol in WITH_PORTS and not dport:
        raise BadOption(f"--to {target} needs a port for {protocol}: {target}:80.")
    if protocol in ("icmp", "icmpv6"):
        protocol = "icmpv6" if ":" in dst else "icmp"
    return PathQuery(src, sport, dst, dport, protocol, arrives)


def _end(text: str, option: str) -> tuple[str, int]:
    bare, port = text, ""
    if text.startswith("["):
        bare, _, port = text[1:].partition("]")
        port = port.removeprefix(":")
    elif text.count(":") == 1:
        bare, _, port = text.partition(":")
    try:
        address = str(ip_address(bare))
    except ValueError:
        raise BadOption(f"{option} {text} is no address: give 10.0.0.1, 10.0.0.1:80 or [fd00::1]:80.") from None
    if port and not (port.isdigit() and 0 < int(port) < 65536):
        raise BadOption(f"{option} {text} has no port from 1 to 65535.")
    return address, int(port or 0)
