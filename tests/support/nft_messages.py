# SPDX-License-Identifier: Apache-2.0
"""Expressions of nftables' rules as netlink attributes, made by hand."""

from __future__ import annotations

from tracer.node.nfnetlink import attribute


def expression(name: str, *data: bytes) -> bytes:
    """One expression (NFTA_LIST_ELEM)."""
    return attribute(1, [attribute(1, name), attribute(2, data)])


def verdict(code: int, chain: str = "") -> bytes:
    """An immediate verdict."""
    inner = [attribute(1, code & 0xFFFFFFFF), *([attribute(2, chain)] if chain else [])]
    return expression("immediate", attribute(1, 0), attribute(2, [attribute(2, inner)]))


def payload(register: int, base: int, offset: int, length: int) -> bytes:
    return expression("payload", attribute(1, register), attribute(2, base), attribute(3, offset), attribute(4, length))


def compared(register: int, data: bytes, operation: int = 0) -> bytes:
    return expression("cmp", attribute(1, register), attribute(2, operation), attribute(3, [attribute(1, data)]))
