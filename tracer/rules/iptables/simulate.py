# SPDX-License-Identifier: Apache-2.0
"""Simulates a table of iptables: the paths of a packet through it, computed from the packet alone.

Rules and matches are evaluated as for a traced packet (tracer/rules/iptables/path_search.py), but without an observation. A
random match, such as "one of three", splits a path with a share for each branch. A match that cannot be computed splits it with
a condition on each branch.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

from tracer.model.condition import MatchResult
from tracer.model.evidence import Evidence
from tracer.model.netfilter import Verdict, decode_verdict
from tracer.model.rule import Rule, RuleHit, RuleLocation
from tracer.rules.ending_targets import CONTINUE, ENDS
from tracer.rules.iptables.encode import TEXT_REVISION
from tracer.rules.iptables.entry import Entry, Extension
from tracer.rules.iptables.match_forecast import forecast
from tracer.rules.iptables.matches import compute, header_matches, mark_after, mark_after_match, packet_after
from tracer.rules.iptables.path_search import MAX_RULES
from tracer.rules.iptables.rule_parser import options_of
from tracer.rules.iptables.table import RETURN, Table
from tracer.rules.match_context import MatchContext, assumption, question_of
from tracer.rules.packet_view import PacketView
from tracer.rules.rule_path import MAX_PATHS, Rewrite, RulePath, TooManyPaths, with_condition

ANY_PORT = 46883
"""A source port that represents all ports that a match does not name."""


@dataclass
class _SimulationState:
    at: int
    rule_path: RulePath
    packet: PacketView
    stack: tuple[int, ...] = ()


@dataclass
class IptablesSimulator:
    """Simulates packets in one table of iptables.

    Attributes:
        table: The table.
        rules: Its rules, by offset.
    """

    table: Table
    rules: dict[int, Rule]
    _context: MatchContext = field(init=False)
    _tried: int = field(default=0, init=False)

    def simulate(self, hook: int, packet: PacketView, sport_known: bool, context: MatchContext) -> list[RulePath]:
        """Simulates a packet at a hook.

        Args:
            hook: Hook number.
            packet: The packet.
            sport_known: Whether its source port is known.
            context: The state beside the packet that matches test.

        Returns:
            All paths, those without conditions first.

        Raises:
            TooManyPaths: There are more than MAX_PATHS paths, or too many rules on one.
        """
        found: list[RulePath] = []
        self._tried, self._context = 0, context
        open_states = [_SimulationState(self.table.hooks[hook], RulePath(mark=packet.mark, assumed=context.assumed), packet)]
        while open_states:
            if len(found) + len(open_states) > MAX_PATHS:
                raise TooManyPaths(f"more than {MAX_PATHS} paths")
            state = open_states.pop()
            found += self._follow(state, open_states, hook, sport_known)
        return sorted(found, key=lambda w: bool(w.conditions))

    def _follow(
        self, state: _SimulationState, fork: list[_SimulationState], hook: int, sport_known: bool
    ) -> Iterator[RulePath]:
        entry, at, path, stack, packet = self.table.entry, state.at, state.rule_path, state.stack, state.packet
        while True:
            self._tried += 1
            if self._tried > MAX_RULES:
                raise TooManyPaths("too many rules")
            e = entry(at)
            matching, others = self._matches(e, path, packet, sport_known)
            if matching is None:
                path, at = others[0], e.next
                continue
            fork += [_SimulationState(e.next, other, packet, stack) for other in others]
            path = matching
            verdict = e.verdict
            if verdict is None:
                path = self._with_hit(path, e, stack, e.target.name)
                ends = ENDS.get(e.target.name, (CONTINUE,))
                if CONTINUE not in ends or e.target.name == "NFQUEUE":
                    yield _with_target(path, e.target, packet)
                    return
                path, at = replace(path, mark=mark_after(e.target, path.mark)), e.next
                packet = packet_after(e.target, packet)
            elif verdict >= 0:
                path = self._with_hit(path, e, stack, "" if verdict == e.next else "GOTO" if e.goto else "JUMP")
                if verdict != e.next and not e.goto:
                    stack = (*stack, at)
                at = verdict
            elif verdict == RETURN:
                if e.number:
                    path = self._with_hit(path, e, stack, "RETURN")
                if stack:
                    at, stack = entry(stack[-1]).next, stack[:-1]
                else:
                    at = self.table.underflows[hook]
            else:
                name = self.table.target_name(at)
                yield replace(self._with_hit(path, e, stack, name), verdict=decode_verdict(name))
                return

    def _with_hit(self, rule_path: RulePath, e: Entry, stack: tuple[int, ...], verdict: str) -> RulePath:
        path = tuple(RuleLocation(x.chain, x.number) for x in (*(self.table.entry(o) for o in stack), e))
        hit = RuleHit(path, self.rules.get(e.at), verdict, Evidence.DERIVED)
        return replace(rule_path, hits=(*rule_path.hits, hit))

    def _matches(
        self, e: Entry, rule_path: RulePath, packet: PacketView, sport_known: bool
    ) -> tuple[RulePath | None, list[RulePath]]:
        """(the path on which the rule matches, None = it cannot match; the paths on which it does not match)."""
        matched = header_matches(e.header, packet)
        if matched is False:
            return None, [rule_path]
        unmatched, others = rule_path, list[RulePath]()
        if matched is None:
            changed = f"the address in rule {e.number} of {e.chain}, after DNPT or SNPT,"
            others.append(with_condition(rule_path, f"{changed} is another", True, ""))
            rule_path = with_condition(rule_path, f"{changed} is the packet's", True, "")
        for match in e.matches:
            answer = self._answer(match, packet, rule_path.mark, sport_known)
            if answer.share == 0:
                return None, [replace(unmatched, mark=rule_path.mark)]
            if answer.doubt:
                question = question_of(match.name, answer.doubt if match.revision == TEXT_REVISION else match.data, packet)
                before = assumption(rule_path.assumed, question)
                if before is False:
                    return None, [replace(unmatched, mark=rule_path.mark)]
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
        if match.revision == TEXT_REVISION:
            return forecast(match.name, options_of(match), packet, self._context)
        sports = {packet.sport} if sport_known else _representative_ports(match)
        answers = {compute(match, replace(packet, sport=sport), mark) for sport in sports}
        if len(answers) == 1 and None not in answers:
            return MatchResult(Fraction(int(bool(answers.pop()))))
        return MatchResult(doubt=f"-m {match.name}")


def _representative_ports(match: Extension) -> set[int]:
    """Source ports that represent all ports: those where the result of a match may change, and ANY_PORT."""
    named: tuple[int, ...] = ()
    if match.name in ("tcp", "udp"):
        named = struct.unpack_from("<HH", match.data)
    elif match.name == "multiport":
        named = struct.unpack_from("<15H", match.data, 2)
    return {ANY_PORT} | {p for n in named for p in (n - 1, n, n + 1) if 0 < p < 65536}


def _with_target(rule_path: RulePath, target: Extension, packet: PacketView) -> RulePath:
    """The path after a target that ends the table."""
    values = {name: given for name, _, given in options_of(target)} if target.revision == TEXT_REVISION else {}
    if target.name == "REJECT":
        default = "icmp-port-unreachable" if packet.family == "ip" else "icmp6-port-unreachable"
        return replace(rule_path, verdict=Verdict.REJECT, reject=_first(values.get("--reject-with"), default))
    if target.name == "NFQUEUE":
        return replace(rule_path, verdict=Verdict.QUEUE)
    given = _first(values.get("--to-destination") or values.get("--to-source") or values.get("--to-ports"), "")
    if target.name == "MASQUERADE":
        # Of a range of ports the kernel chooses one.
        return replace(rule_path, rewrite=Rewrite(target.name, "", int(given) if given.isdigit() else 0))
    address, port = _parse_endpoint(given) if target.name != "REDIRECT" else ("", _parse_endpoint(":" + given)[1])
    return replace(rule_path, rewrite=Rewrite(target.name, address, port))


def _first(values: Sequence[str] | None, default: str) -> str:
    return values[0] if values else default


def _parse_endpoint(text: str) -> tuple[str, int]:
    """(address, port) of 10.0.0.1:80, [fd00::1]:80 or 10.0.0.1; the first ones of ranges; port 0 = none."""
    if text.startswith("["):
        address, _, port = text[1:].partition("]:")
    elif text.count(":") > 1:
        address, port = text, ""
    else:
        address, _, port = text.partition(":")
    port = port.partition("-")[0]
    return address.partition("-")[0].rstrip("]"), int(port) if port.isdigit() else 0
