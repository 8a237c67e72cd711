# SPDX-License-Identifier: Apache-2.0
"""What a table would do to a packet: the ways through it, from the packet alone.

The same rules and matches as in the walk of a packet that was seen (tracer/rules/iptables/path_search.py), without anything
observed: a match that says "one of three" parts the ways by chance, and one that cannot be computed parts them in two, with a
word about it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

from tracer.model.condition import MatchResult
from tracer.model.evidence import Evidence
from tracer.model.rule import Rule, RuleHit, RuleLocation
from tracer.rules.ending_targets import CONTINUE, ENDS
from tracer.rules.iptables.encode import WORDS
from tracer.rules.iptables.entry import Entry, Extension
from tracer.rules.iptables.match_forecast import forecast
from tracer.rules.iptables.matches import compute, header_matches, mark_after, mark_after_match, packet_after
from tracer.rules.iptables.path_search import RULES_TO_TRY
from tracer.rules.iptables.rule_parser import options_of
from tracer.rules.iptables.table import RETURN, Table
from tracer.rules.match_context import MatchContext, assumption, question_of
from tracer.rules.packet_view import PacketView
from tracer.rules.rule_path import MAX_PATHS, Rewrite, RulePath, TooManyPaths, with_condition

ANY_PORT = 46883
"""A source port that stands for all that a match does not name."""


@dataclass
class _Simulation:
    at: int
    rule_path: RulePath
    packet: PacketView
    stack: tuple[int, ...] = ()


@dataclass
class IptablesSimulator:
    """The ways through one table of iptables at a hook."""

    table: Table
    rules: dict[int, Rule]
    _world: MatchContext = field(init=False)
    _tried: int = field(default=0, init=False)

    def simulate(self, hook: int, packet: PacketView, sport_known: bool, world: MatchContext) -> list[RulePath]:
        """Raises TooManyPaths."""
        found: list[RulePath] = []
        self._tried, self._world = 0, world
        open_states = [_Simulation(self.table.hooks[hook], RulePath(mark=packet.mark, assumed=world.assumed), packet)]
        while open_states:
            if len(found) + len(open_states) > MAX_PATHS:
                raise TooManyPaths(f"more than {MAX_PATHS} ways")
            state = open_states.pop()
            found += self._follow(state, open_states, hook, sport_known)
        return sorted(found, key=lambda w: bool(w.conditions))

    def _follow(self, state: _Simulation, fork: list[_Simulation], hook: int, sport_known: bool) -> Iterator[RulePath]:
        entry, at, way, stack, packet = self.table.entry, state.at, state.rule_path, state.stack, state.packet
        while True:
            self._tried += 1
            if self._tried > RULES_TO_TRY:
                raise TooManyPaths("too many rules")
            e = entry(at)
            yes, others = self._matches(e, way, packet, sport_known)
            if yes is None:
                way, at = others[0], e.next
                continue
            fork += [_Simulation(e.next, other, packet, stack) for other in others]
            way = yes
            verdict = e.verdict
            if verdict is None:
                way = self._with(way, e, stack, e.target.name)
                ends = ENDS.get(e.target.name, (CONTINUE,))
                if CONTINUE not in ends or e.target.name == "NFQUEUE":
                    yield _ended(way, e.target, packet)
                    return
                way, at = replace(way, mark=mark_after(e.target, way.mark)), e.next
                packet = packet_after(e.target, packet)
            elif verdict >= 0:
                way = self._with(way, e, stack, "" if verdict == e.next else "GOTO" if e.goto else "JUMP")
                if verdict != e.next and not e.goto:
                    stack = (*stack, at)
                at = verdict
            elif verdict == RETURN:
                if e.number:
                    way = self._with(way, e, stack, "RETURN")
                if stack:
                    at, stack = entry(stack[-1]).next, stack[:-1]
                else:
                    at = self.table.underflows[hook]
            else:
                name = self.table.target_name(at)
                yield replace(self._with(way, e, stack, name), verdict=name)
                return

    def _with(self, rule_path: RulePath, e: Entry, stack: tuple[int, ...], verdict: str) -> RulePath:
        path = tuple(RuleLocation(x.chain, x.number) for x in (*(self.table.entry(o) for o in stack), e))
        hit = RuleHit(path, self.rules.get(e.at), verdict, Evidence.DERIVED)
        return replace(rule_path, hits=(*rule_path.hits, hit))

    def _matches(
        self, e: Entry, rule_path: RulePath, packet: PacketView, sport_known: bool
    ) -> tuple[RulePath | None, list[RulePath]]:
        """(the way on which the rule matches, None = it cannot; those on which it does not, where it need not)."""
        matched = header_matches(e.header, packet)
        if matched is False:
            return None, [rule_path]
        begun, others = rule_path, list[RulePath]()
        if matched is None:
            changed = f"the address in rule {e.number} of {e.chain}, behind DNPT or SNPT,"
            others.append(with_condition(rule_path, f"{changed} is another", True, ""))
            rule_path = with_condition(rule_path, f"{changed} is the packet's", True, "")
        for match in e.matches:
            answer = self._answer(match, packet, rule_path.mark, sport_known)
            if answer.share == 0:
                return None, [replace(begun, mark=rule_path.mark)]
            if answer.doubt:
                question = question_of(match.name, answer.doubt if match.revision == WORDS else match.data, packet)
                before = assumption(rule_path.assumed, question)
                if before is False:
                    return None, [replace(begun, mark=rule_path.mark)]
                if before is None:
                    where = f"rule {e.number} of {e.chain}"
                    others.append(with_condition(rule_path, answer.doubt, False, where, question))
                    rule_path = with_condition(rule_path, answer.doubt, True, where, question)
            elif answer.share < 1:
                others.append(replace(rule_path, share=rule_path.share * (1 - answer.share)))
                rule_path = replace(rule_path, share=rule_path.share * answer.share)
            if (mark := mark_after_match(match, rule_path.mark)) != rule_path.mark:
                rule_path = replace(rule_path, mark=mark)
        return rule_path, others

    def _answer(self, match: Extension, packet: PacketView, mark: int | None, sport_known: bool) -> MatchResult:
        if match.revision == WORDS:
            return forecast(match.name, options_of(match), packet, self._world)
        sports = {packet.sport} if sport_known else _telling(match)
        told = {compute(match, replace(packet, sport=sport), mark) for sport in sports}
        if len(told) == 1 and None not in told:
            return MatchResult(Fraction(int(bool(told.pop()))))
        return MatchResult(doubt=f"-m {match.name}")


def _telling(match: Extension) -> set[int]:
    """Source ports that stand for all there are: where a match's answer may change, and another one."""
    named: tuple[int, ...] = ()
    if match.name in ("tcp", "udp"):
        named = struct.unpack_from("<HH", match.data)
    elif match.name == "multiport":
        named = struct.unpack_from("<15H", match.data, 2)
    return {ANY_PORT} | {p for n in named for p in (n - 1, n, n + 1) if 0 < p < 65536}


def _ended(rule_path: RulePath, target: Extension, packet: PacketView) -> RulePath:
    """What a target that ends the table does."""
    values = {name: given for name, _, given in options_of(target)} if target.revision == WORDS else {}
    if target.name == "REJECT":
        default = "icmp-port-unreachable" if packet.family == "ip" else "icmp6-port-unreachable"
        return replace(rule_path, verdict="REJECT", reject=_first(values.get("--reject-with"), default))
    if target.name == "NFQUEUE":
        return replace(rule_path, verdict="QUEUE")
    given = _first(values.get("--to-destination") or values.get("--to-source") or values.get("--to-ports"), "")
    address, port = _end(given) if target.name != "REDIRECT" else ("", _end(":" + given)[1])
    return replace(rule_path, rewrite=Rewrite(target.name, address, port))


def _first(values: Sequence[str] | None, default: str) -> str:
    return values[0] if values else default


def _end(text: str) -> tuple[str, int]:
    """10.0.0.1:80, [fd00::1]:80, 10.0.0.1; of ranges the first."""
    if text.startswith("["):
        address, _, port = text[1:].partition("]:")
    elif text.count(":") > 1:
        address, port = text, ""
    else:
        address, _, port = text.partition(":")
    port = port.partition("-")[0]
    return address.partition("-")[0].rstrip("]"), int(port) if port.isdigit() else 0
