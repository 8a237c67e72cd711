# SPDX-License-Identifier: Apache-2.0
"""The virtual servers of IPVS in this namespace, from /proc/net/ip_vs, to predict whether IPVS takes a packet."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from tracer.util.endpoint_format import format_endpoint


@dataclass(frozen=True)
class VirtualServers:
    """The virtual servers. `proc`: /proc/PID/net or a directory like it."""

    proc: Path = Path("/proc/net")

    def real_servers(self, address: str, port: int, protocol: str) -> tuple[str, ...] | None:
        """The real servers that a virtual server may choose, without those of weight 0.

        Args:
            address: Address of the virtual server.
            port: Its port.
            protocol: "tcp", "udp", "sctp".

        Returns:
            ADDRESS:PORT of each real server; None = no such virtual server.
        """
        try:
            lines = (self.proc / "ip_vs").read_text(encoding="ascii").splitlines()
        except OSError:
            return None
        packed = ip_address(address).packed
        text = packed.hex().upper() if len(packed) == 4 else f"[{ip_address(address).exploded}]".upper()
        prefix = f"{protocol.upper()}  {text}:{port:04X} "
        found: list[str] | None = None
        for line in lines:
            if not line.startswith("  ->"):
                if found is not None:
                    break
                found = [] if f"{line.upper()} ".startswith(prefix) else None
            elif found is not None:
                end, _, weight = line.split()[1:4]
                found += [_end(end)] if weight != "0" else []
        return None if found is None else tuple(found)


def _end(text: str) -> str:
    """0AF4000B:1F90 -> 10.244.0.11:8080."""
    host, _, port = text.rpartition(":")
    address = ip_address(host.strip("[]")) if host.startswith("[") else ip_address(bytes.fromhex(host))
    return format_endpoint(str(address), int(port, 16))
