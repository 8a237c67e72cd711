# SPDX-License-Identifier: Apache-2.0
"""Formats the rules that acted, shared by the output formats."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tracer.model.evidence import Evidence
from tracer.model.hop import Hop, RewriteHop, is_from_conntrack, trace_of
from tracer.model.rule import Rule, RuleHit
from tracer.render._style import KEEP, Styler, plain

LEADING_VERDICTS = frozenset({"", "JUMP", "GOTO"})
"""Verdicts of rules that only lead to another chain. The path shows them."""


def hits_shown(hits: Sequence[RuleHit]) -> list[RuleHit]:
    """Returns the hits that did more than lead to another chain."""
    return [v for v in hits if v.verdict not in LEADING_VERDICTS]


def format_rule(rule: Rule) -> str:
    """Returns the rule's text, or its target if iptables-save printed no text."""
    return rule.text or f"{rule.target or 'counts'} (its text could not be read)"


def rule_lines(hop: Hop, verbose: bool, style: Styler, explained: bool = False) -> Iterator[str]:
    """Yields the lines of the rules that acted.

    Args:
        hop: The hop.
        verbose: Also show the rules before the deciding one that did more than lead to it.
        style: The styler of the output stream.
        explained: The packet is predicted. Then every rule is derived, so the remark "(derived)" is omitted.
    """
    trace = trace_of(hop)
    if not trace:
        return
    before = "from conntrack, " * is_from_conntrack(hop)
    if trace.undecided:
        reason = plain(trace.undecided)
        yield style("doubt", before + (reason if reason.startswith("decided") else f"rule not known: {reason}"))
        for rule in trace.possible:
            yield style("quiet", plain(f"  perhaps {rule.chain} {rule.number}: {rule.text}"))
        return
    hits = hits_shown(trace.hits) if verbose and not isinstance(hop, RewriteHop) else [v for v in (trace.decision,) if v]
    for hit in hits:
        remark = "  " + style("quiet", "(derived)") if hit.evidence is Evidence.DERIVED and not explained else ""
        # The lines of the connection's first packet show the whole path and the rule.
        steps_shown = hit.path[-1:] if before and not verbose else hit.path
        steps = f"{KEEP}> ".join(f"{plain(p.chain)}{KEEP}{p.number or 'policy'}" for p in steps_shown)
        text = plain(format_rule(hit.rule)) if hit.rule and (verbose or not before) else ""
        if before:
            yield f"{before}decided by {style('place', steps)}{': ' * bool(text)}{text}{remark}"
        else:
            yield f"{style('place', steps)}{remark}"
            if hit.hotdrop:
                yield "  " + style("doubt", f"dropped here because {plain(hit.hotdrop)}; the rule's target did not act")
            if text:
                yield "  " + text
