# SPDX-License-Identifier: Apache-2.0
"""Names of network namespaces, as hops, packets and connections have them. "" = not known."""

from __future__ import annotations

HOST = "node"
"""Name of the node's own namespace. No other namespace has it, also not one that `ip netns` calls so (`distinct_name`)."""


def is_host(netns: str) -> bool:
    """Whether it is the node's own namespace."""
    return netns == HOST


def distinct_name(name: str, inode: int) -> str:
    """The name of a namespace other than the node's: with its inode if it has the node's name."""
    return f"{name} (netns {inode})" if name == HOST else name


def in_netns(netns: str) -> str:
    """ " in pod-a"; "" for the node's own namespace, or if it is not known."""
    return f" in {netns}" if netns not in ("", HOST) else ""
