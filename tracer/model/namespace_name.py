# SPDX-License-Identifier: Apache-2.0
"""Names of network namespaces, as hops, packets and connections have them.

A name is a type of its own for the type checker, so that no other text takes its place. At run time it is a str: a name costs
nothing to compare and to hash, and every hop, packet and connection has one.
"""

from __future__ import annotations

from typing import Final, NewType

Netns = NewType("Netns", str)
"""The name of a network namespace; a text becomes one where it is read: from the node, a capture or an option."""

NO_NETNS: Final = Netns("")
"""No namespace, or none whose name is known."""
HOST: Final = Netns("node")
"""Name of the node's own namespace. No other namespace has it, also not one that `ip netns` calls so (`distinct_name`)."""


def is_host(netns: Netns) -> bool:
    """Whether it is the node's own namespace."""
    return netns == HOST


def distinct_name(name: str, inode: int) -> Netns:
    """The name of a namespace other than the node's: with its inode if it has the node's name."""
    return Netns(f"{name} (netns {inode})" if name == HOST else name)


def unnamed(inode: int) -> Netns:
    """What a namespace without a name and without a process is called. inode: 0 = not known."""
    return Netns(f"netns {inode}") if inode else NO_NETNS


def in_netns(netns: Netns) -> str:
    """ " in pod-a"; "" for the node's own namespace, or if it is not known."""
    return f" in {netns}" if netns not in (NO_NETNS, HOST) else ""
