# SPDX-License-Identifier: Apache-2.0
"""Where a packet goes to or comes from, as operators write it."""

from __future__ import annotations

from functools import lru_cache


@lru_cache(4096)
def format_endpoint(address: str, port: int = 0) -> str:
    """An address with its port, where it has one: 10.0.0.1:80, [fd00::1]:80, 10.0.0.1."""
    if not port:
        return address
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
