# SPDX-License-Identifier: Apache-2.0
"""Words for the rules that acted, shared by the formats."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tracer.model.evidence import Evidence
from tracer.model.packet import Hop
from tracer.model.rule import Rule, RuleHit
from tracer.render._style import KEEP, Styler, plain

PASSED = frozenset({"", "JUMP", "GOTO"})
"""What a rule does that only leads on: the path tells of it."""


def acted(hits: Sequence[RuleHit]) -> list[RuleHit]:
    """Those that did more than lead on."""
    return [v for v in hits if v.verdict not in PASSED]


def format_rule(rule: Rule) -> str:
    """The rule's text, or what it does if iptables-save told none."""
    return rule.text or f"{rule.target or 'counts'} (its text could not be read)"


def rule_lines(hop: Hop, verbose: bool, style: Styler, explained: bool = False) -> Iterator[str]:
    """Which rules acted, for people: the one that decided; verbose: also those before it that did more than lead there.

    explained: of a packet that nobody has sent everything is derived, so it is not said of each rule.
    """
    trace = hop.rule_trace
    if not trace:
        return
    before = "from conntrack, " * hop.from_conntrack
    if trace.undecided:
        reason = plain(trace.undecided)
        yield style("doubt", before + (reason if reason.startswith("decided") else f"rule not known: {reason}"))
        for rule in trace.possible:
            yield style("quiet", plain(f"  perhaps {rule.chain} {rule.number}: {rule.text}"))
        return
    visits = acted(trace.hits) if verbose and not hop.nat else [v for v in (trace.decision,) if v]
    for hit in visits:
        remark = "  " + style("quiet", "(derived)") if hit.evidence is Evidence.DERIVED and not explained else ""
        # The first packet's lines tell the whole way, and the rule.
        places = hit.path[-1:] if before and not verbose else hit.path
        steps = f"{KEEP}> ".join(f"{plain(p.chain)}{KEEP}{p.number or 'policy'}" for p in places)
        said = plain(format_rule(hit.rule)) if hit.rule and (verbose or not before) else ""
        if before:
            yield f"{before}decided by {style('place', steps)}{': ' * bool(said)}{said}{remark}"
        else:
            yield f"{style('place', steps)}{remark}"
            if hit.hotdrop:
                yield "  " + style("doubt", f"dropped here because {plain(hit.hotdrop)}; the rule's target did not act")
            if said:
                yield "  " + said
