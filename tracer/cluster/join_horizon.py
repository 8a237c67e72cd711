# SPDX-License-Identifier: Apache-2.0
"""Up to which time the packets of all nodes have come: only then is it known which views a packet has."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

OPEN_NS = 2_000_000_000
"""Longest time of most packets on a node until they are sent as a result, ns. A later one is taken for a loss by the joiner."""
MOST_BEHIND_NS = 120_000_000_000
"""Longest time that packets wait for a node that is slower than the others, ns."""


NO_MORE = 1 << 62
"""The time that is read when all captures have been read, ns."""
MOST_AHEAD = 1 << 14
"""Number of waiting packets at which the capture of a node is not read further until those of the others are as far."""


class Horizon(Protocol):
    """Up to which time no further view of a packet comes."""

    def advance(self, node: str, until: int) -> None:
        """A node has sent all packets that ended until a time, ns of the reference clock."""

    def end(self, node: str) -> None:
        """A node sends no more packets."""

    def is_ahead(self, node: str, waiting: int) -> bool:
        """Whether a node has to wait for the others. waiting: number of its packets that wait for views of other nodes."""

    def read(self, nodes: Iterable[str], now: int) -> int:
        """The time up to which all packets of these nodes have come, ns of the reference clock. now: the client's clock, ns."""


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

    def end(self, node: str) -> None:
        self._reached.pop(node, None)

    def is_ahead(self, node: str, waiting: int) -> bool:
        """Nobody waits: packets of a live run come when they come."""
        return False

    def read(self, nodes: Iterable[str], now: int) -> int:
        """The time up to which all packets of these nodes have come, ns of the client's clock. now: the same clock, ns."""
        usual = now - self._wait_ns
        if not self._wait_ns:
            return usual
        return max(min((self._reached.get(node, usual) for node in nodes), default=usual), now - MOST_BEHIND_NS)


class RecordedHorizon:
    """The times up to which captures have been read. A capture that is ahead of the others waits for them.

    Args:
        nodes: The nodes of which captures are read.
    """

    def __init__(self, nodes: Iterable[str]) -> None:
        self._reached = dict.fromkeys(nodes, 0)

    def advance(self, node: str, until: int) -> None:
        if node in self._reached:
            self._reached[node] = until - OPEN_NS

    def end(self, node: str) -> None:
        self._reached.pop(node, None)

    def is_ahead(self, node: str, waiting: int) -> bool:
        return waiting > MOST_AHEAD and self._reached.get(node, 0) > min(self._reached.values(), default=0)

    def read(self, nodes: Iterable[str], now: int) -> int:
        """As Horizon.read, of all nodes of which packets can still come."""
        return min(self._reached.values(), default=NO_MORE)
