# SPDX-License-Identifier: Apache-2.0
"""Whether IPVS takes a packet: the virtual servers of this namespace, from /proc/net/ip_vs."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from tracer.util.endpoint_format import format_endpoint


@dataclass(frozen=True)
class VirtualServers:
    """The virtual servers. proc: /proc/PID/net or what looks like it."""

    proc: Path = Path("/proc/net")

    def real_servers(self, address: str, port: int, protocol: str) -> tuple[str, ...] | None:
        """The real servers, as ADDRESS:PORT, that the virtual server at this address and port may choose: none of weight 0.
        None when there is no such virtual server.
        """
        try:
            lines = (self.proc / "ip_vs").read_text(encoding="ascii").splitlines()
        except OSError:
            return None
        packed = ip_address(address).packed
        text = packed.hex().upper() if len(packed) == 4 else f"[{ip_address(address).exploded}]".upper()
        wanted = f"{protocol.upper()}  {text}:{port:04X} "
        found: list[str] | None = None
        for line in lines:
            if not line.startswith("  ->"):
                if found is not None:
                    break
                found = [] if f"{line.upper()} ".startswith(wanted) else None
            elif found is not None:
                end, _, weight = line.split()[1:4]
                found += [_end(end)] if weight != "0" else []
        return None if found is None else tuple(found)


def _end(text: str) -> str:
    """0AF4000B:1F90 -> 10.244.0.11:8080."""
    host, _, port = text.rpartition(":")
    address = ip_address(host.strip("[]")) if host.startswith("[") else ip_address(bytes.fromhex(host))
    return format_endpoint(str(address), int(port, 16))
