# SPDX-License-Identifier: Apache-2.0
"""What a simulated path depends on and cannot be computed."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True)
class MatchResult:
    """share: 0 = false, 1 = true, between: as the rule's own dice fall. doubt: the match, where it cannot be told, else ""."""

    share: Fraction = Fraction(1)
    doubt: str = ""


@dataclass(frozen=True)
class Condition:
    """Something that a way depends on and that cannot be computed. what: the match; holds: whether it is taken for true there;
    where: in which rule. Without a rule, `what` is the whole clause. of: the question that it is one answer to, None = this
    match of this rule; options: how many answers there are.
    """

    what: str
    holds: bool = True
    where: str = ""
    of: Hashable = None
    options: int = 2

    @property
    def group(self) -> Hashable:
        """What all answers to the question have in common."""
        return self.of or (self.what, self.where)

    @property
    def text(self) -> str:
        """As a clause behind "if"."""
        return f"{self.what} is {'true' if self.holds else 'false'} in {self.where}" if self.where else self.what


Assumed = frozenset[tuple[Hashable, bool]]
"""What a way takes for true or false: a match with the packet as it was then."""
