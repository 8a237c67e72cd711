# SPDX-License-Identifier: Apache-2.0
"""The walk of one packet through one legacy table: computed rule by rule, held to what was observed.

From the base chain's first rule on, every rule either matches or not. The address part, and matches that can be computed, are.
What a match function answered, and that a target function was called, was observed, in order: a rule whose function ought to
have been called next, and was not, refutes the way that leads there. Where a match was neither computed nor observed both ways
are followed. So whatever remains agrees with all observations and with the verdict the table returned; the answer counts
only if one way remains.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tracer.model.evidence import Evidence
from tracer.model.rule import Rule, RuleHit, RuleLocation, RuleTrace
from tracer.rules.ending_targets import CONTINUE, ENDS
from tracer.rules.iptables.entry import Entry, Extension
from tracer.rules.iptables.malformed import HEADERS_END, clause, header_throws, throws
from tracer.rules.iptables.mark import MarkChange
from tracer.rules.iptables.matches import compute, header_matches, packet_after
from tracer.rules.iptables.table import RETURN, Table
from tracer.rules.packet_view import PacketView
from tracer.rules.xt_targets import NO_HOTDROP_MATCHES

FALSE, TRUE, UNKNOWN, TARGET = range(4)
RULES_TO_TRY = 100_000
"""Rules looked at before a search is given up."""

_ANY = (CONTINUE, "ACCEPT", "DROP", "QUEUE")


Step = tuple[tuple[int, ...], int, str, bool, str]
"""Of a rule that acted: the rules jumped from, its own offset, what it did, whether that was observed, why a match of it threw
the packet away."""
Way = tuple[Step, ...]
PLAIN = frozenset({"", "JUMP", "GOTO", "RETURN", "ACCEPT", "DROP", "QUEUE"})
"""What rules do without a target function."""


@dataclass(frozen=True)
class TableObservation:
    """What was seen of a table run. steps: (offset in the blob, FALSE, TRUE, UNKNOWN or TARGET), in order.

    lost: steps that are missing at the end. jumps: offsets of the rules jumped from at the last target, stale ones behind.
    watched: says of a match or target (kind, name, revision, family) whether its function is. hotdrop: number of the step, from
    1, whose match threw the packet away; 0 = none did, None = not known. mark: the packet's when the table returned, None = not
    known.
    """

    steps: tuple[tuple[int, int], ...]
    lost: int
    jumps: tuple[int, ...]
    watched: Callable[[tuple[str, str, int, str]], bool]
    hotdrop: int | None = None
    mark: int | None = None


@dataclass(frozen=True)
class _SearchState:
    """A way so far. at: the next rule; stack: offsets of the rules jumped from; step: the next one not accounted for."""

    at: int
    stack: tuple[int, ...]
    step: int
    mark: MarkChange
    hits: Way
    packet: PacketView


RuleOf = Callable[[Entry], Rule]


def reconstruct(table: Table, rule: RuleOf, hook: int, verdict: str, packet: PacketView, seen: TableObservation) -> RuleTrace:
    """The way of `packet` through the table at `hook`, which returned `verdict` ("ACCEPT", "DROP", "QUEUE")."""
    if hook not in table.hooks:
        return RuleTrace(undecided=f"the rules of table {table.name} that were read have no such hook")
    search = _Search(table, hook, verdict, packet, seen)
    ways = search.ways()
    if search.given_up:
        return RuleTrace(undecided="there are too many ways through these rules")
    if not ways:
        return RuleTrace(undecided="no way through these rules agrees with what was observed")
    if len(ways) > 1:
        ways = [w for w in ways if _jumped(w, seen)] or ways
    if len(ways) > 1:
        last = {w[-1][1]: None for w in ways if w}
        possible = tuple(rule(e) for e in map(table.entry, last) if e.number)
        return RuleTrace(possible=possible, undecided=f"{search.unseen or 'a match'} was not observed and cannot be computed")
    return RuleTrace(tuple(_hit(table, rule, *v) for v in ways[0]))


def _jumped(way: Way, seen: TableObservation) -> bool:
    """Whether the way's last observed target was reached by the jumps that were seen."""
    stack = next((v[0] for v in reversed(way) if v[3] and v[2] not in PLAIN), ())
    return len(stack) > len(seen.jumps) or stack == seen.jumps[: len(stack)]


def _hit(table: Table, rule: RuleOf, stack: tuple[int, ...], at: int, verdict: str, observed: bool, hotdrop: str) -> RuleHit:
    entries = [table.entry(o) for o in (*stack, at)]
    path = tuple(RuleLocation(e.chain, e.number) for e in entries)
    acted = entries[-1]
    evidence = Evidence.OBSERVED if observed else Evidence.DERIVED
    return RuleHit(path, rule(acted) if acted.number else None, verdict, evidence, hotdrop=hotdrop)


class _Search:
    def __init__(self, table: Table, hook: int, verdict: str, packet: PacketView, seen: TableObservation) -> None:
        self.table, self.hook, self.verdict, self.packet, self.seen = table, hook, verdict, packet, seen
        self.given_up, self.unseen, self._tried = False, "", 0
        self._watched: dict[tuple[str, str, int], bool] = {}

    def ways(self) -> list[Way]:
        """All ways that agree with what was observed; no more than a few are looked for."""
        found: dict[Way, None] = {}
        open_ways = [_SearchState(self.table.hooks[self.hook], (), 0, MarkChange(self.packet.mark), (), self.packet)]
        while open_ways and len(found) < 8 and not self.given_up:
            for end in self._follow(open_ways.pop(), open_ways):
                found[end] = None
        return list(found)

    def _follow(self, state: _SearchState, fork: list[_SearchState]) -> Iterator[Way]:
        """Goes on from a state until the table is done or the way is refuted; other ways are put into fork."""
        entry = self.table.entry
        at, stack, step, mark, hits, packet = state.at, state.stack, state.step, state.mark, state.hits, state.packet
        while True:
            self._tried += 1
            if self._tried > RULES_TO_TRY:
                self.given_up = True
                return
            e = entry(at)
            hotdrop = header_throws(e.header, packet)
            if hotdrop is not False and self._ends("DROP", step, mark):
                yield (*hits, (stack, at, "DROP", False, HEADERS_END))
            if hotdrop:
                return
            matched = header_matches(e.header, packet)
            if matched is False:
                at = e.next
                continue
            if matched is None:
                self.unseen = self.unseen or f"the header that rule {e.number} of {e.chain} asks for"
                fork.append(_SearchState(e.next, stack, step, mark, hits, packet))
            observed, reason = False, ""
            for match in e.matches:
                matched, step, seen, hotdrop = self._match(match, step, mark.value, packet)
                observed = observed or seen
                if matched is None and step < 0:
                    return
                if hotdrop and matched:
                    reason = clause(match, packet)
                elif hotdrop is not False and not matched and self._ends("DROP", step, mark):
                    self.unseen = self.unseen or f"what match {match.name} of rule {e.number} of {e.chain} did with the packet"
                    yield (*hits, (stack, at, "DROP", seen, clause(match, packet)))
                if hotdrop and not matched:
                    return
                if matched is None:
                    # Not known: the way where it is false goes on from the next rule.
                    self.unseen = self.unseen or f"match {match.name} of rule {e.number} of {e.chain}"
                    fork.append(_SearchState(e.next, stack, step, mark.answered(match, False), hits, packet))
                    mark = mark.answered(match, True)
                elif not matched:
                    break
                mark = mark.after_match(match)
            if reason:  # by a match that was true all the same: the target acts, or a later match is false, and the table ends
                if matched is not False and e.verdict is None:
                    step = self._target(e.target, step)
                if step >= 0 and self._ends("DROP", step, mark):
                    yield (*hits, (stack, at, "DROP", observed, reason))
                return
            if matched is False:
                at = e.next
                continue
            verdict = e.verdict
            if verdict is None:
                step = self._target(e.target, step)
                if step < 0:
                    return
                done = (stack, at, e.target.name, self._is_watched("target", e.target), "")
                mark = mark.after(e.target)
                ends = ENDS.get(e.target.name, _ANY)
                if self.verdict in ends and self._complete(step, mark):
                    yield (*hits, done)
                if CONTINUE not in ends:
                    return
                hits, at, packet = (*hits, done), e.next, packet_after(e.target, packet)
            elif verdict >= 0:
                name = "" if verdict == e.next else "GOTO" if e.goto else "JUMP"
                hits = (*hits, (stack, at, name, observed, ""))
                if verdict != e.next and not e.goto:
                    stack = (*stack, at)
                at = verdict
            elif verdict == RETURN:
                if e.number:
                    hits = (*hits, (stack, at, "RETURN", observed, ""))
                if stack:
                    at, stack = entry(stack[-1]).next, stack[:-1]
                else:
                    at = self.table.underflows[self.hook]
            else:
                name = self.table.target_name(at)
                if self._ends(name, step, mark):
                    yield (*hits, (stack, at, name, observed, ""))
                return

    def _match(
        self, match: Extension, step: int, mark: int | None, packet: PacketView
    ) -> tuple[bool | None, int, bool, bool | None]:
        """(what it answered, the next step, whether that was observed, whether it threw the packet away).

        Step -1: it ought to have been asked and was not.
        """
        if not self._is_watched("match", match):
            hotdrop = throws(match, packet)
            return False if hotdrop else compute(match, packet, mark), step, False, hotdrop
        steps = self.seen.steps
        if step >= len(steps):
            return None, (step if self.seen.lost else -1), False, None if match.name not in NO_HOTDROP_MATCHES else False
        at, what = steps[step]
        if at != match.at or what == TARGET:
            return None, -1, False, False
        answer, seen = (None if what == UNKNOWN else what == TRUE), what != UNKNOWN
        hotdrop = False if match.name in NO_HOTDROP_MATCHES else None
        if self.seen.hotdrop is not None and (seen or self.seen.hotdrop):
            hotdrop = self.seen.hotdrop == step + 1
        return answer, step + 1, seen, hotdrop

    def _target(self, target: Extension, step: int) -> int:
        if not self._is_watched("target", target):
            return step
        steps = self.seen.steps
        if step >= len(steps):
            return step if self.seen.lost else -1
        return step + 1 if steps[step] == (target.at, TARGET) else -1

    def _ends(self, verdict: str, step: int, mark: MarkChange) -> bool:
        """A way may end here with this verdict."""
        return verdict == self.verdict and self._complete(step, mark)

    def _complete(self, step: int, mark: MarkChange) -> bool:
        """Every step seen is accounted for, and the mark is what the table left."""
        return step == len(self.seen.steps) and mark.may_be(self.seen.mark, self.packet)

    def _is_watched(self, kind: str, ext: Extension) -> bool:
        key = (kind, ext.name, ext.revision)
        if key not in self._watched:
            self._watched[key] = self.seen.watched((*key, self.table.family))
        return self._watched[key]
