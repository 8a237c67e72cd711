# SPDX-License-Identifier: Apache-2.0
"""Merges paths with the same outcome for each answer to a question that cannot be computed, and removes that condition."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import replace

from tracer.model.condition import Condition
from tracer.model.hop import NatHop, RewriteHop, RuleHop
from tracer.model.namespace_name import HOST
from tracer.model.netfilter import REFUSALS
from tracer.model.packet import Packet
from tracer.model.prediction import PathState
from tracer.model.rule import RuleTrace, format_path
from tracer.packets.outcome import classify


def merged(states: Sequence[PathState]) -> list[PathState]:
    """Merges paths that differ in the answer to one question but have the same outcome. The merged paths are kept as twins."""
    found, before = list(states), 0
    while len(found) != before:
        before = len(found)
        for of in list(dict.fromkeys(d.group for m in found for d in m.conditions)):
            found = _without(of, found)
    return found


def finished(m: PathState) -> PathState:
    """A state that passes no hook any more: of its ends only those count as done that were translated, and no mark counts."""
    return replace(m, mark=0, done=frozenset(h.nat.kind for h in m.hops if isinstance(h, RewriteHop)))


def _without(of: Hashable, states: Sequence[PathState]) -> list[PathState]:
    """Merges the paths of one question if there is one for each answer."""
    groups: dict[Hashable, list[tuple[PathState, Condition]]] = defaultdict(list)
    out: dict[int, PathState] = {}
    for at, m in enumerate(states):
        condition = next((d for d in m.conditions if d.group == of), None)
        if not condition:
            out[at] = m
            continue
        rest = tuple(d for d in m.conditions if d.group != of)
        mark = m.mark if not m.ended else 0
        groups[m.ends, mark, m.in_iface, m.out_iface, m.done, m.share, rest, _ending(m)].append((m, condition))
    places = {id(m): at for at, m in enumerate(states)}
    for same in groups.values():
        answers = {doubt.text for _, doubt in same}
        if len(answers) < same[0][1].options or len(answers) != len(same):
            out |= {places[id(m)]: m for m, _ in same}
            continue
        (first, mine), *others = same
        conditions = tuple(d for d in first.conditions if d is not mine)
        twins = (*first.twins, *((doubt, m) for m, doubt in others))
        out[places[id(first)]] = replace(first, conditions=conditions, twins=twins, assumed=_common(same))
    return [out[at] for at in sorted(out)]


def _common(same: Sequence[tuple[PathState, Condition]]) -> frozenset[tuple[Hashable, bool]]:
    return frozenset.intersection(*(m.assumed for m, _ in same))


def notes(m: PathState) -> tuple[str, ...]:
    """Notes on other rules that may do the same."""
    mine, found = _deciding(m), []
    for doubt, twin in m.twins:
        others = [rule for rule in _deciding(twin) if rule not in mine]
        if others:
            found.append(f"the same by {', '.join(others)} if {doubt.text}")
    return tuple(dict.fromkeys(found))


def _deciding(m: PathState) -> list[str]:
    """The locations of the rules that translated or refused the packet."""
    traces = (h.rule_trace for h in m.hops if isinstance(h, NatHop) or (isinstance(h, RuleHop) and h.is_decisive))
    return list(dict.fromkeys(_named(trace) for trace in traces if trace and trace.decision))


def _named(trace: RuleTrace) -> str:
    """The table, named as in a condition, and the location of the deciding rule."""
    hit = trace.decision
    assert hit
    rule, legacy = hit.rule, bool(trace.ruleset and trace.ruleset.backend == "legacy")
    table = f"{'legacy' if legacy else rule.family} {rule.table} " if rule else ""
    return table + format_path(hit.path)


def _ending(m: PathState) -> Hashable:
    """How a path ends. If a table ends it, the verdict and the hook, so that the rules of any table are equivalent."""
    last = m.hops[-1] if m.hops else None
    if m.ended and isinstance(last, RuleHop) and last.verdict in REFUSALS:
        return last.verdict, last.reject, last.hook, last.netns
    return m.ended or classify(Packet(0, 0, HOST, "", "", "", m.ends, hops=m.hops))
