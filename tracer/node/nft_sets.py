# SPDX-License-Identifier: Apache-2.0
"""Named sets of addresses of nftables in our own network namespace, through netlink: nft may be absent, and takes longer."""

from __future__ import annotations

import errno
from ipaddress import ip_address

from tracer.node.nfnetlink import DumpInterrupted, Nfnetlink, attribute, attributes, items, nft_loaded, number

GETSET, GETSETELEM = 10, 13
FAMILIES = {2: 7, 10: 8}
"""Family of a table -> nft's type of its addresses (TYPE_IPADDR, TYPE_IP6ADDR)."""
MOST_ADDRESSES = 1024
"""Largest number of addresses in a set; a larger set is not read."""
_NO_FLAGS_BUT = 0x2 | 0x10 | 0x20
"""Flags of a set of single addresses: constant, with timeouts, filled by packets."""
_TYPE, _FLAGS = 4, 3


def addresses(table: str, name: str) -> tuple[str, ...] | None:
    """The elements of the sets of this name in the tables of this name, of both families.

    Returns:
        The addresses; () = no such set; None = the kernel refuses, or a set has other elements or is too large.
    """
    if not nft_loaded():
        return ()
    found: list[str] = []
    asked = attribute(1, table) + attribute(2, name)
    try:
        for family, kind in FAMILIES.items():
            # A dump that is not read to its end occupies its socket.
            with Nfnetlink() as nfnetlink:
                try:
                    definition = attributes(nfnetlink.get(GETSET, family, asked)[2])
                except OSError as e:
                    if e.errno == errno.ENOENT:
                        continue
                    raise
                if number(definition.get(_TYPE)) != kind or number(definition.get(_FLAGS)) & ~_NO_FLAGS_BUT:
                    return None
                for _, _, part in nfnetlink.iter_dump(GETSETELEM, family, asked):
                    for _, element in items(attributes(part).get(3, b"")):
                        key = attributes(attributes(element).get(1, b"")).get(1, b"")
                        found.append(str(ip_address(key)))
                    if len(found) > MOST_ADDRESSES:
                        return None
    except (OSError, ValueError, DumpInterrupted):
        return None
    return tuple(found)
