# SPDX-License-Identifier: Apache-2.0
"""Conditions of a predicted path: what it depends on and cannot be computed."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True)
class MatchResult:
    """The result of one match of a rule.

    Attributes:
        share: Probability that it matches: 0 = false, 1 = true, between = the rule decides at random (statistic).
        doubt: The match, where its result cannot be computed; else "".
    """

    share: Fraction = Fraction(1)
    doubt: str = ""


@dataclass(frozen=True)
class Condition:
    """One condition that a path depends on and that cannot be computed.

    Attributes:
        what: The match; without a rule, the whole clause.
        holds: Whether the path assumes that it is true.
        where: The rule, "" = no rule.
        of: The question that this condition is one answer to; None = this match of this rule.
        options: Number of possible answers.
    """

    what: str
    holds: bool = True
    where: str = ""
    of: Hashable = None
    options: int = 2

    @property
    def group(self) -> Hashable:
        """Identity of the question, equal for all its answers."""
        return self.of or (self.what, self.where)

    @property
    def text(self) -> str:
        """The clause that follows "if"."""
        return f"{self.what} is {'true' if self.holds else 'false'} in {self.where}" if self.where else self.what


Assumed = frozenset[tuple[Hashable, bool]]
"""Assumptions of a path: (match with the packet at that point, true or false)."""
