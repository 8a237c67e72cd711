# SPDX-License-Identifier: Apache-2.0
"""Reconstructs the rule trace of one packet in one legacy table, rule by rule, checked against the observation.

From the first rule of the base chain on, every rule either matches or not. The address part and some matches are computed. The
results of watched match functions and the calls of watched target functions were observed, in order. A path is refuted if it
leads to a rule with a watched function that was not called next. If a match was neither computed nor observed, both paths are
followed. The remaining paths agree with all observations and with the verdict of the table. The result is used only if one path
remains.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from tracer.model.evidence import Evidence
from tracer.model.rule import Rule, RuleHit, RuleLocation, RuleTrace
from tracer.rules.ending_targets import CONTINUE, ENDS
from tracer.rules.iptables.entry import Entry, Extension
from tracer.rules.iptables.hotdrop import HEADERS_END, header_sets_hotdrop, hotdrop_reason, sets_hotdrop
from tracer.rules.iptables.mark import MarkChange
from tracer.rules.iptables.matches import PortTest, compute, header_matches, packet_after, port_tests
from tracer.rules.iptables.table import RETURN, Table
from tracer.rules.packet_view import PacketView
from tracer.rules.xt_targets import NO_HOTDROP_MATCHES

FALSE, TRUE, UNKNOWN, TARGET = range(4)
MAX_RULES = 100_000
"""Most rules evaluated before a search is given up."""

_ANY = (CONTINUE, "ACCEPT", "DROP", "QUEUE")


_ASSIGNING = frozenset({"CT", "NOTRACK"})
"""Targets that assign a connection to a packet, or remove it."""
Step = tuple[tuple[int, ...], int, str, bool, str]
"""A rule that acted: offsets of the rules jumped from, its own offset, its verdict, whether that was observed, why one of its
matches set hotdrop ("" = none did)."""
HitPath = tuple[Step, ...]
PLAIN_VERDICTS = frozenset({"", "JUMP", "GOTO", "RETURN", "ACCEPT", "DROP", "QUEUE"})
"""Verdicts of rules without a target function."""


@dataclass(frozen=True)
class TableObservation:
    """The observation of one table run.

    Attributes:
        steps: (offset in the blob; FALSE, TRUE, UNKNOWN or TARGET), in order.
        lost: Number of steps missing at the end.
        jumps: Offsets of the rules jumped from at the last target, followed by stale ones.
        watched: Whether the function of a match or target (kind, name, revision, family) is watched.
        hotdrop: Number of the step, from 1, that set hotdrop; 0 = none did, None = not known.
        mark: The packet's mark when the table returned, None = not known.
    """

    steps: tuple[tuple[int, int], ...]
    lost: int
    jumps: tuple[int, ...]
    watched: Callable[[tuple[str, str, int, str]], bool]
    hotdrop: int | None = None
    mark: int | None = None


@dataclass(frozen=True)
class _SearchState:
    """The state at one point of a path.

    Attributes:
        at: Offset of the next rule.
        stack: Offsets of the rules jumped from.
        step: Index of the next observed step.
        mark: The packet's mark.
        hits: Rules that acted so far.
        packet: The packet.
    """

    at: int
    stack: tuple[int, ...]
    step: int
    mark: MarkChange
    hits: HitPath
    packet: PacketView


RuleOf = Callable[[Entry], Rule]


def reconstruct(
    table: Table,
    rule: RuleOf,
    hook: int,
    verdict: str,
    packet: PacketView,
    observation: TableObservation,
    tested: set[PortTest] | None = None,
) -> RuleTrace:
    """Reconstructs the rule trace of a packet in a table.

    Args:
        table: The rules of the generation in force.
        rule: Gives the rule of an entry.
        hook: Hook number.
        verdict: Verdict that the table returned: "ACCEPT", "DROP", "QUEUE".
        packet: The packet when the table began.
        observation: What was observed.
        tested: Is filled with the tests of the packet's ports on which the rule trace depends.

    Returns:
        The rule trace; `undecided` if not exactly one path agrees with the observation.
    """
    if hook not in table.hooks:
        return RuleTrace(undecided=f"the rules of table {table.name} that were read have no such hook")
    search = _Search(table, hook, verdict, packet, observation)
    paths = search.paths()
    if tested is not None:
        tested |= search.tested
    if search.is_given_up:
        return RuleTrace(undecided="there are too many paths through these rules")
    if not paths:
        return RuleTrace(undecided="no path through these rules agrees with what was observed")
    if len(paths) > 1:
        paths = [w for w in paths if _agrees_with_jumps(w, observation)] or paths
    if len(paths) > 1:
        last = {w[-1][1]: None for w in paths if w}
        possible = tuple(rule(e) for e in map(table.entry, last) if e.number)
        return RuleTrace(possible=possible, undecided=f"{search.unknown or 'a match'} was not observed and cannot be computed")
    return RuleTrace(tuple(_hit(table, rule, *v) for v in paths[0]))


def _agrees_with_jumps(path: HitPath, observation: TableObservation) -> bool:
    """Whether the last observed target of a path was reached by the observed jumps."""
    stack = next((v[0] for v in reversed(path) if v[3] and v[2] not in PLAIN_VERDICTS), ())
    return len(stack) > len(observation.jumps) or stack == observation.jumps[: len(stack)]


def _hit(table: Table, rule: RuleOf, stack: tuple[int, ...], at: int, verdict: str, observed: bool, hotdrop: str) -> RuleHit:
    entries = [table.entry(o) for o in (*stack, at)]
    path = tuple(RuleLocation(e.chain, e.number) for e in entries)
    acted = entries[-1]
    evidence = Evidence.OBSERVED if observed else Evidence.DERIVED
    return RuleHit(path, rule(acted) if acted.number else None, verdict, evidence, hotdrop=hotdrop)


class _Search:
    def __init__(self, table: Table, hook: int, verdict: str, packet: PacketView, seen: TableObservation) -> None:
        self.table, self.hook, self.verdict, self.packet, self.observation = table, hook, verdict, packet, seen
        self.is_given_up, self.unknown, self._tried = False, "", 0
        self._watched: dict[tuple[str, str, int], bool] = {}
        self.tested: set[PortTest] = set()

    def paths(self) -> list[HitPath]:
        """Paths that agree with the observation; the search stops when it has eight."""
        found: dict[HitPath, None] = {}
        open_states = [_SearchState(self.table.hooks[self.hook], (), 0, MarkChange(self.packet.mark), (), self.packet)]
        while open_states and len(found) < 8 and not self.is_given_up:
            for end in self._follow(open_states.pop(), open_states):
                found[end] = None
        return list(found)

    def _follow(self, state: _SearchState, fork: list[_SearchState]) -> Iterator[HitPath]:
        """Follows a path until the table ends or the path is refuted. States of other paths are added to `fork`."""
        entry = self.table.entry
        at, stack, step, mark, hits, packet = state.at, state.stack, state.step, state.mark, state.hits, state.packet
        while True:
            self._tried += 1
            if self._tried > MAX_RULES:
                self.is_given_up = True
                return
            e = entry(at)
            hotdrop = header_sets_hotdrop(e.header, packet)
            if hotdrop is not False and self._can_end("DROP", step, mark):
                yield (*hits, (stack, at, "DROP", False, HEADERS_END))
            if hotdrop:
                return
            matched = header_matches(e.header, packet)
            if matched is False:
                at = e.next
                continue
            if matched is None:
                self.unknown = self.unknown or f"the header that rule {e.number} of {e.chain} tests"
                fork.append(_SearchState(e.next, stack, step, mark, hits, packet))
            is_observed, reason = False, ""
            for match in e.matches:
                matched, step, was_seen, hotdrop = self._match(match, step, mark.value, packet)
                is_observed = is_observed or was_seen
                if matched is None and step < 0:
                    return
                if hotdrop and matched:
                    reason = hotdrop_reason(match, packet)
                elif hotdrop is not False and not matched and self._can_end("DROP", step, mark):
                    effect = f"what match {match.name} of rule {e.number} of {e.chain} did with the packet"
                    self.unknown = self.unknown or effect
                    yield (*hits, (stack, at, "DROP", was_seen, hotdrop_reason(match, packet)))
                if hotdrop and not matched:
                    return
                if matched is None:
                    # Not known: the path on which it is false continues at the next rule.
                    self.unknown = self.unknown or f"match {match.name} of rule {e.number} of {e.chain}"
                    fork.append(_SearchState(e.next, stack, step, mark.with_answer(match, False), hits, packet))
                    mark = mark.with_answer(match, True)
                elif not matched:
                    break
                mark = mark.after_match(match)
            if reason:  # hotdrop by a match that was still true: the target acts or a later match is false, then the table ends
                if matched is not False and e.verdict is None:
                    step = self._target(e.target, step)
                if step >= 0 and self._can_end("DROP", step, mark):
                    yield (*hits, (stack, at, "DROP", is_observed, reason))
                return
            if matched is False:
                at = e.next
                continue
            verdict = e.verdict
            if verdict is None:
                step = self._target(e.target, step)
                if step < 0:
                    return
                hit = (stack, at, e.target.name, self._is_watched("target", e.target), "")
                mark = mark.after(e.target)
                ends = ENDS.get(e.target.name, _ANY)
                if self.verdict in ends and self._is_complete(step, mark):
                    yield (*hits, hit)
                if CONTINUE not in ends:
                    return
                hits, at, packet = (*hits, hit), e.next, packet_after(e.target, packet)
            elif verdict >= 0:
                name = "" if verdict == e.next else "GOTO" if e.goto else "JUMP"
                hits = (*hits, (stack, at, name, is_observed, ""))
                if verdict != e.next and not e.goto:
                    stack = (*stack, at)
                at = verdict
            elif verdict == RETURN:
                if e.number:
                    hits = (*hits, (stack, at, "RETURN", is_observed, ""))
                if stack:
                    at, stack = entry(stack[-1]).next, stack[:-1]
                else:
                    at = self.table.underflows[self.hook]
            else:
                name = self.table.target_name(at)
                if self._can_end(name, step, mark):
                    yield (*hits, (stack, at, name, is_observed, ""))
                return

    def _match(
        self, match: Extension, step: int, mark: int | None, packet: PacketView
    ) -> tuple[bool | None, int, bool, bool | None]:
        """(result, next step, whether it was observed, whether it set hotdrop) of a match; None = not known.

        The step is -1 if the match must have been called next and was not.
        """
        self.tested.update(port_tests(match))
        if not self._is_watched("match", match):
            if match.name == "conntrack" and not self._keeps_connection:
                packet = replace(packet, connection=None)
            hotdrop = sets_hotdrop(match, packet)
            return False if hotdrop else compute(match, packet, mark), step, False, hotdrop
        steps = self.observation.steps
        if step >= len(steps):
            return None, (step if self.observation.lost else -1), False, None if match.name not in NO_HOTDROP_MATCHES else False
        at, what = steps[step]
        if at != match.at or what == TARGET:
            return None, -1, False, False
        answer, is_observed = (None if what == UNKNOWN else what == TRUE), what != UNKNOWN
        hotdrop = False if match.name in NO_HOTDROP_MATCHES else None
        if self.observation.hotdrop is not None and (is_observed or self.observation.hotdrop):
            hotdrop = self.observation.hotdrop == step + 1
        return answer, step + 1, is_observed, hotdrop

    @cached_property
    def _keeps_connection(self) -> bool:
        """Whether the packet had the same connection while the table ran. Only table raw can change it."""
        if self.table.name != "raw":
            return True
        targets = [e.target for chain in self.table.chains for e in self.table.rules(chain) if e.target.name in _ASSIGNING]
        if not targets:
            return True
        called = {at for at, what in self.observation.steps if what == TARGET}
        are_watched = all(self._is_watched("target", target) for target in targets)
        return are_watched and not self.observation.lost and called.isdisjoint(target.at for target in targets)

    def _target(self, target: Extension, step: int) -> int:
        if not self._is_watched("target", target):
            return step
        steps = self.observation.steps
        if step >= len(steps):
            return step if self.observation.lost else -1
        return step + 1 if steps[step] == (target.at, TARGET) else -1

    def _can_end(self, verdict: str, step: int, mark: MarkChange) -> bool:
        """Whether a path may end here with this verdict."""
        return verdict == self.verdict and self._is_complete(step, mark)

    def _is_complete(self, step: int, mark: MarkChange) -> bool:
        """Whether all observed steps are used, and the mark may be the one after the table."""
        return step == len(self.observation.steps) and mark.may_be(self.observation.mark, self.packet)

    def _is_watched(self, kind: str, ext: Extension) -> bool:
        key = (kind, ext.name, ext.revision)
        if key not in self._watched:
            self._watched[key] = self.observation.watched((*key, self.table.family))
        return self._watched[key]
