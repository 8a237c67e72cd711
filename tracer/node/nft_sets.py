# SPDX-License-Identifier: Apache-2.0
"""Named sets of addresses of nftables in our own network namespace, as nft prints them."""

from __future__ import annotations

import json
from ipaddress import ip_address
from typing import Any

from tracer.node import tools

FAMILIES = ("ip", "ip6")
MOST_ADDRESSES = 1024
"""Largest number of addresses in a set; a larger set is not read."""


def addresses(table: str, name: str) -> tuple[str, ...] | None:
    """The elements of the sets of this name in the tables of this name, of both families.

    Returns:
        The addresses; () = no such set; None = nft is missing or fails, or a set has other elements or is too large.
    """
    found: list[str] = []
    for family in FAMILIES:
        try:
            # Without elements (-t): this does not fail if there is no such table.
            tables = tools.output("nft", "-j", "-t", "list", "sets", family)
            if not any((each.get("table"), each.get("name")) == (table, name) for each in _sets(tables)):
                continue
            printed = tools.output("nft", "-j", "list", "set", family, table, name)
            found += [_text(element) for each in _sets(printed) for element in each.get("elem") or ()]
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return None
    return tuple(found) if len(found) <= MOST_ADDRESSES else None


def _sets(printed: str) -> list[dict[str, Any]]:
    return [each["set"] for each in json.loads(printed)["nftables"] if "set" in each]


def _text(element: Any) -> str:
    """An element that is an address, with or without a comment. Raises ValueError for another kind of element."""
    value = element["elem"]["val"] if isinstance(element, dict) and "elem" in element else element
    return str(ip_address(value))
