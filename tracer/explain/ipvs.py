"""Whether IPVS takes a packet: the virtual servers of this namespace, from /proc/net/ip_vs."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path


@dataclass(frozen=True)
class Virtual:
    """The virtual servers. proc: /proc/PID/net or what looks like it."""

    proc: Path = Path("/proc/net")

    def at(self, address: str, port: int, protocol: str) -> bool:
        """Whether one is at this address and port."""
        try:
            lines = (self.proc / "ip_vs").read_text(encoding="ascii").splitlines()
        except OSError:
            return False
        packed = ip_address(address).packed
        text = packed.hex().upper() if len(packed) == 4 else f"[{ip_address(address).exploded}]".upper()
        wanted = f"{protocol.upper()}  {text}:{port:04X}"
        return any(line.upper().startswith(wanted) for line in lines)
