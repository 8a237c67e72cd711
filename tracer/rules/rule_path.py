# SPDX-License-Identifier: Apache-2.0
"""One way of a packet through the rules of a hook, as the simulations of both back ends give it."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace
from fractions import Fraction

from tracer.model.condition import Assumed, Condition
from tracer.model.rule import RuleHit

MOST = 512
"""So many ways are followed; a Service of more endpoints is told by that many."""


class TooManyPaths(Exception):
    """There are too many ways through these rules."""


@dataclass(frozen=True)
class Rewrite:
    """What a translation would make of one end. kind: "DNAT", "SNAT", "MASQUERADE", "REDIRECT". address "": left to the
    kernel; port 0: as it was, or left to the kernel.
    """

    kind: str
    address: str = ""
    port: int = 0


@dataclass(frozen=True)
class RulePath:
    """One way through a table or chain. verdict: "ACCEPT", "DROP", "REJECT", "QUEUE". mark: behind it, None = not known.

    share: of all connections, by the rules' own choices. doubts: what it depends on that cannot be computed. assumed: what they
    say, for the same question asked again.
    """

    hits: tuple[RuleHit, ...] = ()
    verdict: str = "ACCEPT"
    mark: int | None = 0
    rewrite: Rewrite | None = None
    reject: str = ""
    share: Fraction = Fraction(1)
    conditions: tuple[Condition, ...] = ()
    assumed: Assumed = frozenset()


def with_condition(rule_path: RulePath, what: str, holds: bool, where: str, question: Hashable = None) -> RulePath:
    """The way if that is so. question: what was asked, None = another answer may come when it is asked again."""
    assumed = rule_path.assumed if question is None else rule_path.assumed | {(question, holds)}
    return replace(rule_path, conditions=(*rule_path.conditions, Condition(what, holds, where)), assumed=assumed)
