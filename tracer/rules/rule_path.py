# SPDX-License-Identifier: Apache-2.0
"""A simulated path of a packet through the rules of a hook, the same for both back ends."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace
from fractions import Fraction

from tracer.model.condition import Assumed, Condition
from tracer.model.netfilter import AnyVerdict, Verdict
from tracer.model.rule import RuleHit

MAX_PATHS = 512
"""Most paths that are followed; more raise TooManyPaths."""


class TooManyPaths(Exception):
    """There are too many paths through these rules."""


@dataclass(frozen=True)
class Rewrite:
    """The result of a translation on one side.

    Attributes:
        kind: "DNAT", "SNAT", "MASQUERADE", "REDIRECT".
        address: The new address, "" = chosen by the kernel.
        port: The new port, 0 = unchanged or chosen by the kernel.
    """

    kind: str
    address: str = ""
    port: int = 0


@dataclass(frozen=True)
class RulePath:
    """One path through a table or chain.

    Attributes:
        hits: Rules that act on this path, in order.
        verdict: ACCEPT, DROP, REJECT, QUEUE; any text from a policy that another program wrote.
        mark: The packet's mark at the end, None = not known.
        rewrite: The translation, None = none.
        reject: The answer of a REJECT, such as "icmp-port-unreachable"; "" = none.
        share: Share of all connections that take this path, by the random choices of the rules.
        conditions: What the path depends on and cannot be computed.
        assumed: Answers that these conditions assume, for the same question asked again.
    """

    hits: tuple[RuleHit, ...] = ()
    verdict: AnyVerdict = Verdict.ACCEPT
    mark: int | None = 0
    rewrite: Rewrite | None = None
    reject: str = ""
    share: Fraction = Fraction(1)
    conditions: tuple[Condition, ...] = ()
    assumed: Assumed = frozenset()


def with_condition(rule_path: RulePath, what: str, holds: bool, where: str, question: Hashable = None) -> RulePath:
    """The path with one more condition.

    Args:
        rule_path: The path so far.
        what: What is asked, as text.
        holds: The answer assumed on this path.
        where: The rule that asks.
        question: Key of the question, None = the answer may differ when it is asked again.
    """
    assumed = rule_path.assumed if question is None else rule_path.assumed | {(question, holds)}
    return replace(rule_path, conditions=(*rule_path.conditions, Condition(what, holds, where)), assumed=assumed)
