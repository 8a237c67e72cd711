# SPDX-License-Identifier: Apache-2.0
"""The nouns of explain: one way that a packet may go, and how far it is told."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction

from tracer.model.condition import Assumed, Condition
from tracer.model.packet import Endpoints, Hop, Packet


@dataclass(frozen=True)
class PredictedPath:
    """One way that the packet may go. share: of all connections; doubts: on what it depends, a clause each. loose: (hook,
    table, chain) of those whose place among others of the same priority is not known. notes: what is not known and changes
    nothing, as which of two equal rules acts. twins: the same story by those other rules.
    """

    packet: Packet
    share: Fraction
    conditions: tuple[str, ...]
    loose: frozenset[tuple[str, str, str]] = frozenset()
    notes: tuple[str, ...] = ()
    twins: tuple[PredictedPath, ...] = ()

    def with_twins(self) -> Iterator[PredictedPath]:
        """The story and all its twins."""
        yield self
        for twin in self.twins:
            yield from twin.with_twins()


@dataclass(frozen=True)
class PathState:
    """A story so far. mark: None = not known. in_face, out_face: the interfaces, "" = none. done: which ends ("dst", "src") are
    translated, or will not be any more. assumed: what its doubts say of matches. twins: stories that come to the same, and
    when. over: (sentence, outcome) of a story that has ended.
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
    ended: tuple[str, str] | None = None

    def end_with(self, sentence: str, outcome: str, *hops: Hop) -> PathState:
        """The story with its end."""
        return replace(self, hops=(*self.hops, *hops), ended=(sentence, outcome))
