# SPDX-License-Identifier: Apache-2.0
"""Up to which time the packets of all nodes have come: only then is it known which views a packet has."""

from __future__ import annotations

from collections.abc import Iterable

OPEN_NS = 2_000_000_000
"""Longest time of most packets on a node until they are sent as a result, ns. A later one is taken for a loss by the joiner."""
MOST_BEHIND_NS = 120_000_000_000
"""Longest time that packets wait for a node that is slower than the others, ns."""


class JoinHorizon:
    """The times up to which nodes have sent their packets.

    Args:
        wait_ns: Time that packets wait for a node with an unknown clock, ns; 0 = packets wait for no node.
    """

    def __init__(self, wait_ns: int) -> None:
        self._wait_ns = wait_ns
        self._reached: dict[str, int] = {}

    def advance(self, node: str, until: int) -> None:
        """A node has sent all packets that ended until a time, ns of the client's clock."""
        self._reached[node] = until - OPEN_NS

    def read(self, nodes: Iterable[str], now: int) -> int:
        """The time up to which all packets of these nodes have come, ns of the client's clock. now: the same clock, ns."""
        usual = now - self._wait_ns
        if not self._wait_ns:
            return usual
        return max(min((self._reached.get(node, usual) for node in nodes), default=usual), now - MOST_BEHIND_NS)
