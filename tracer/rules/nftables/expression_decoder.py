# SPDX-License-Identifier: Apache-2.0
"""The expressions of a rule from netlink, as `nft -j` writes them.

The kernel has small steps that load a value into a register, change it and compare it. The decoder keeps what each register
holds and joins the steps to matches and statements. What it does not know becomes {"unknown": ...}: an expression, or an
attribute of one, that this program does not know, and each value that may depend on it.
"""

from __future__ import annotations

from tracer.node.nfnetlink import attributes, items, text
from tracer.rules.nftables.expressions import load_steps, match_steps, statement_steps
from tracer.rules.nftables.expressions.decoded_rule import DecodedRule, FindSet, ReadElements
from tracer.util.json_value import JsonObject

_ROWS = {**load_steps.STEPS, **match_steps.STEPS, **statement_steps.STEPS}


def decode(raw: bytes, family: str, find_set: FindSet, read_elements: ReadElements | None) -> tuple[JsonObject, ...]:
    """The expressions of a rule.

    Args:
        raw: NFTA_RULE_EXPRESSIONS.
        family: Family of the rule's table.
        find_set: Gives the definitions of the table's sets.
        read_elements: Gives the elements of unnamed sets. None = an unnamed set is given by the kernel's name for it.
    """
    rule = DecodedRule(family, find_set, read_elements)
    for _, each in items(raw):
        expression = attributes(each)
        name, data = text(expression.get(1)), attributes(expression.get(2, b""))
        row = _ROWS.get(name)
        if row is None:
            rule.give_up(name)
            continue
        step, last_attribute = row
        if max(data, default=0) > last_attribute:
            rule.give_up(name)
        else:
            step(rule, data)
    return tuple(rule.expressions)
