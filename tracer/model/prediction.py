# SPDX-License-Identifier: Apache-2.0
"""Predicted paths of the command explain, and the state of a path while it is computed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction

from tracer.model.condition import Assumed, Condition
from tracer.model.endpoints import Endpoints
from tracer.model.hop import Hop
from tracer.model.packet import Outcome, Packet


@dataclass(frozen=True)
class PredictedPath:
    """One path that the packet may take.

    Attributes:
        packet: The packet with its predicted hops.
        share: Share of all connections that take this path.
        conditions: Conditions that the path depends on, one clause each.
        loose: (hook, table, chain) of chains whose order among others of the same priority is not known.
        notes: Unknowns that do not change the path, such as which of two equal rules acts; what NetworkPolicies that do not
            allow the packet would have needed; policies that may decide where no rule does.
        twins: The same path by those other rules.
    """

    packet: Packet
    share: Fraction
    conditions: tuple[str, ...]
    loose: frozenset[tuple[str, str, str]] = frozenset()
    notes: tuple[str, ...] = ()
    twins: tuple[PredictedPath, ...] = ()

    def with_twins(self) -> Iterator[PredictedPath]:
        """Yields this path and all its twins."""
        yield self
        for twin in self.twins:
            yield from twin.with_twins()


@dataclass(frozen=True)
class PathState:
    """State of a path while it is computed.

    Attributes:
        ends: Current endpoints.
        mark: Packet mark; None = not known.
        hops: Hops so far.
        in_iface: Incoming interface, "" = none.
        out_iface: Outgoing interface, "" = none.
        done: Endpoints ("dst", "src") that are translated, or cannot be translated any more.
        share: Share of all connections.
        conditions: Conditions so far.
        assumed: Results of matches that the conditions assume.
        twins: (condition, path) pairs that lead to the same result.
        ended: (sentence, outcome) of a path that has ended; None = it goes on.
    """

    ends: Endpoints
    mark: int | None = 0
    hops: tuple[Hop, ...] = ()
    in_iface: str = ""
    out_iface: str = ""
    done: frozenset[str] = frozenset()
    share: Fraction = Fraction(1)
    conditions: tuple[Condition, ...] = ()
    assumed: Assumed = frozenset()
    twins: tuple[tuple[Condition, PathState], ...] = ()
    ended: tuple[str, Outcome] | None = None

    def end_with(self, sentence: str, outcome: Outcome, *hops: Hop) -> PathState:
        """The path with its last hops and its outcome."""
        return replace(self, hops=(*self.hops, *hops), ended=(sentence, outcome))
