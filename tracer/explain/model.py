"""The nouns of explain: one way that a packet may go, and how far it is told."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction

from tracer.model import Endpoints, Hop, Packet


@dataclass(frozen=True)
class Story:
    """One way that the packet may go. share: of all connections; doubts: on what it depends, a clause each. loose: (hook,
    table, chain) of those whose place among others of the same priority is not known.
    """

    packet: Packet
    share: Fraction
    doubts: tuple[str, ...]
    loose: frozenset[tuple[str, str, str]] = frozenset()


@dataclass(frozen=True)
class Moment:
    """A story so far. mark: None = not known. in_face, out_face: the interfaces, "" = none. done: which ends ("dst", "src") are
    translated, or will not be any more. over: (sentence, outcome) of a story that has ended.
    """

    ends: Endpoints
    mark: int | None = 0
    hops: tuple[Hop, ...] = ()
    in_face: str = ""
    out_face: str = ""
    done: frozenset[str] = frozenset()
    share: Fraction = Fraction(1)
    doubts: tuple[str, ...] = ()
    over: tuple[str, str] | None = None

    def end(self, sentence: str, outcome: str, *hops: Hop) -> Moment:
        """The story with its end."""
        return replace(self, hops=(*self.hops, *hops), over=(sentence, outcome))
