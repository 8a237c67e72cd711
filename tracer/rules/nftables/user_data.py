# SPDX-License-Identifier: Apache-2.0
"""nft's user data of a rule, a chain, a set or an element: what nft keeps in the kernel for itself, such as comments."""

from __future__ import annotations


def user_data(raw: bytes) -> dict[int, bytes]:
    """Values by kind; the first of each kind. Each is a byte of kind, a byte of length, and the value."""
    found: dict[int, bytes] = {}
    at = 0
    while at + 2 <= len(raw):
        kind, length = raw[at], raw[at + 1]
        found.setdefault(kind, raw[at + 2 : at + 2 + length])
        at += 2 + length
    return found
