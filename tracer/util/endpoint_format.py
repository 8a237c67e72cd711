# SPDX-License-Identifier: Apache-2.0
"""Format of endpoints."""

from __future__ import annotations

from functools import lru_cache


@lru_cache(4096)
def format_endpoint(address: str, port: int = 0) -> str:
    """Formats an address with its port, 0 = no port: 10.0.0.1:80, [fd00::1]:80, 10.0.0.1."""
    if not port:
        return address
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def format_protocol(protocol: str, port: int) -> str:
    """A protocol with a port: "tcp 8080"; 0 = the protocol alone."""
    return f"{protocol} {port}" if port else protocol
