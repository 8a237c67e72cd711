# SPDX-License-Identifier: Apache-2.0
"""Simulates a native nftables chain: evaluates its expressions, as `nft -j` lists them, one by one for a packet.

An unknown expression, or one about an unknown value, splits a path in two with a condition on each branch. `numgen` splits it
with a share for each branch.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from fractions import Fraction

from tracer.model.evidence import Evidence
from tracer.model.netfilter import Verdict, decode_verdict
from tracer.model.rule import Rule, RuleHit, RuleLocation
from tracer.rules.match_context import MatchContext, assumption, question_of
from tracer.rules.nftables.evaluate import UNKNOWN, Evaluator, RandomValue
from tracer.rules.nftables.format import expression as words
from tracer.rules.nftables.format import operand
from tracer.rules.nftables.json_parser import BaseChain, NftListing
from tracer.rules.packet_view import PacketView
from tracer.rules.rule_path import MAX_PATHS, Rewrite, RulePath, TooManyPaths, with_condition
from tracer.util.json_value import Json, JsonObject, as_object, as_text, member, only_member

_REJECTS = {("icmp", "ip"): "icmp-port-unreachable", ("icmpv6", "ip6"): "icmp6-port-unreachable"}
_NON_TERMINAL = frozenset({
    "counter", "log", "comment", "notrack", "set", "map", "last", "dup", "ct helper", "ct timeout", "ct expectation",
})  # fmt: skip
"""Statements after which the rule continues. "set" and "map" add, update or delete an element: they end the rule only if the
set is full."""
_SET_UPDATE = re.compile(r"(add|update|delete) @")
"""Begin of the text of such a statement, which nft does not write as JSON."""
_UNSTABLE = re.compile(r"\bmark\b|@")
"""Found in the text of a match that may give another result when it is evaluated again: marks, and sets that rules change."""
_VERDICTS = {"accept": Verdict.ACCEPT, "drop": Verdict.DROP, "queue": Verdict.QUEUE}
_TRANSLATIONS = {"dnat": "DNAT", "snat": "SNAT", "masquerade": "MASQUERADE", "redirect": "REDIRECT"}


@dataclass(frozen=True)
class _Frame:
    """A rule that led to another chain. `returns`: whether the packet comes back to it (jump)."""

    location: RuleLocation
    returns: bool


@dataclass(frozen=True)
class _SimulationState:
    """The state at one point of a path.

    Attributes:
        chain: The current chain.
        next: Index of the next rule, from 0.
        rule_path: The path so far.
        frames: Rules that led here.
        expression: Index of the next expression of that rule.
        element: The map element used, "" = none.
    """

    chain: str
    next: int
    rule_path: RulePath
    frames: tuple[_Frame, ...] = ()
    expression: int = 0
    element: str = ""


@dataclass
class NftablesSimulator:
    """Simulates packets in the base chains of a listing of nft."""

    listed: NftListing
    _context: MatchContext = field(init=False)
    _family: str = field(default="", init=False)
    _table: str = field(default="", init=False)

    def simulate(self, base: BaseChain, packet: PacketView, sport_known: bool, context: MatchContext) -> list[RulePath]:
        """Simulates a packet in a base chain.

        Args:
            base: The base chain.
            packet: The packet.
            sport_known: Whether its source port is known.
            context: The state beside the packet that matches test.

        Returns:
            All paths, those without conditions first.

        Raises:
            TooManyPaths: There are more than MAX_PATHS paths, or too many steps.
        """
        self._context = context
        self._family, self._table, chain = base.key
        found: list[RulePath] = []
        open_states = [_SimulationState(chain, 0, RulePath(mark=packet.mark, assumed=context.assumed))]
        tried = 0
        while open_states:
            tried += 1
            if len(found) + len(open_states) > MAX_PATHS or tried > 100_000:
                raise TooManyPaths(f"more than {MAX_PATHS} paths")
            state = open_states.pop()
            rules = self.listed.ruleset.chain(self._family, self._table, state.chain)
            if state.next < len(rules):
                values = Evaluator(
                    self.listed, (self._family, self._table), packet, self._context, state.rule_path.mark, sport_known
                )
                for following in self._rule(rules[state.next], state, values, packet):
                    if isinstance(following, RulePath):
                        found.append(following)
                    else:
                        open_states.append(following)
            elif state.frames:
                open_states.append(_return(state))
            else:
                location = RuleLocation(chain, 0)
                hit = RuleHit((location,), None, base.policy, Evidence.DERIVED)
                found.append(replace(state.rule_path, hits=(*state.rule_path.hits, hit), verdict=decode_verdict(base.policy)))
        return sorted(found, key=lambda w: bool(w.conditions))

    def _rule(
        self, rule: Rule, state: _SimulationState, values: Evaluator, packet: PacketView
    ) -> Iterator[_SimulationState | RulePath]:
        """Evaluates a rule; yields the following states, and the paths that end here."""
        body = self.listed.expressions.get((rule.family, rule.table, rule.chain, rule.handle), ())
        passed = replace(state, next=state.next + 1, expression=0)
        path, has_acted = state.rule_path, False
        for at in range(state.expression, len(body)):
            kind, given = only_member(body[at])
            values = replace(values, mark=path.mark)
            if kind == "match":
                is_true = values.matches(given)
                if is_true is False:
                    yield replace(passed, rule_path=path)
                    return
                if is_true is None:
                    text = words(body[at])
                    question = question_of("" if _UNSTABLE.search(text) else "nft", text, packet)
                    before = assumption(path.assumed, question)
                    if before is None:
                        yield replace(passed, rule_path=with_condition(path, text, False, _where(rule), question))
                        path = with_condition(path, text, True, _where(rule), question)
                    elif not before:
                        yield replace(passed, rule_path=path)
                        return
            elif kind == "mangle":
                has_acted = True
                if member(given, "key") == {"meta": {"key": "mark"}}:
                    mark = values.of(member(given, "value"))
                    path = replace(path, mark=mark if isinstance(mark, int) else None)
            elif kind == "vmap":
                yield from self._map(rule, given, replace(passed, rule_path=path), values)
                return
            elif kind in ("jump", "goto"):
                yield self._enter(rule, kind, as_text(member(given, "target")), replace(passed, rule_path=path))
                return
            elif kind == "return":
                yield _return(replace(passed, rule_path=_with_hit(path, rule, state.frames, "RETURN")))
                return
            elif kind in _VERDICTS:
                yield replace(_with_hit(path, rule, state.frames, _VERDICTS[kind]), verdict=_VERDICTS[kind])
                return
            elif kind == "reject":
                answer = _answer(as_object(given or {}), rule, packet)
                yield replace(_with_hit(path, rule, state.frames, Verdict.REJECT), verdict=Verdict.REJECT, reject=answer)
                return
            elif kind in _TRANSLATIONS:
                translated = _with_hit(path, rule, state.frames, _TRANSLATIONS[kind])
                rewrites = _rewrites(_TRANSLATIONS[kind], as_object(given or {}), values)
                yield from (replace(translated, rewrite=r, share=translated.share * s) for r, s in rewrites)
                return
            elif kind not in _NON_TERMINAL and not (kind == "text" and _SET_UPDATE.match(as_text(given))):
                # An unknown statement: it is not known whether the rule continues after it.
                yield replace(passed, rule_path=with_condition(path, words(body[at]), False, _where(rule)))
                path = with_condition(path, words(body[at]), True, _where(rule))
        yield replace(passed, rule_path=_with_hit(path, rule, state.frames, rule.target or "CONTINUE") if has_acted else path)

    def _map(
        self, rule: Rule, given: Json, state: _SimulationState, values: Evaluator
    ) -> Iterator[_SimulationState | RulePath]:
        """Evaluates a verdict map: the element of the key, several with their shares, or none (the rule has no effect)."""
        data = member(given, "data")
        choices = values.look_up(member(given, "key"), data)
        if choices is None:
            what = f"an element of {operand(data)} for this packet"
            yield replace(state, rule_path=with_condition(state.rule_path, what, False, _where(rule)))
            return
        rest = Fraction(1)
        for share, text, verdict in choices:
            rest -= share
            path = replace(state.rule_path, share=state.rule_path.share * share)
            word, _, target = verdict.partition(" ")
            if word in ("jump", "goto"):
                yield self._enter(rule, word, target, replace(state, rule_path=path), text)
            elif word in _VERDICTS:
                yield replace(_with_hit(path, rule, state.frames, _VERDICTS[word], text), verdict=_VERDICTS[word])
            elif word == "return":
                yield _return(replace(state, rule_path=_with_hit(path, rule, state.frames, "RETURN", text)))
            else:
                yield replace(state, rule_path=path)
        if rest > 0:
            yield replace(state, rule_path=replace(state.rule_path, share=state.rule_path.share * rest))

    def _enter(self, rule: Rule, kind: str, target: str, state: _SimulationState, element: str = "") -> _SimulationState:
        path = _with_hit(state.rule_path, rule, state.frames, f"{kind.upper()} {target}", element)
        frame = _Frame(RuleLocation(rule.chain, rule.number), kind == "jump")
        # A goto does not return; its frame stays because it is part of the location.
        return _SimulationState(target, 0, path, (*state.frames, frame))


def _where(rule: Rule) -> str:
    return f"rule {rule.number} of {rule.chain}"


def _return(state: _SimulationState) -> _SimulationState:
    """The state after the last jump; if there is none, at the end of the base chain."""
    frames = list(state.frames)
    while frames:
        frame = frames.pop()
        if frame.returns:
            return _SimulationState(frame.location.chain, frame.location.number, state.rule_path, tuple(frames))
    base = state.frames[0].location.chain if state.frames else state.chain
    return _SimulationState(base, 1 << 30, state.rule_path, ())


def _with_hit(rule_path: RulePath, rule: Rule, frames: Iterable[_Frame], verdict: str, element: str = "") -> RulePath:
    path = (*(f.location for f in frames), RuleLocation(rule.chain, rule.number))
    return replace(rule_path, hits=(*rule_path.hits, RuleHit(path, rule, verdict, Evidence.DERIVED, element)))


def _answer(given: JsonObject, rule: Rule, packet: PacketView) -> str:
    """What a reject sends to the source of the packet."""
    default = "icmp-port-unreachable" if packet.family == "ip" else "icmp6-port-unreachable"
    return _REJECTS.get((str(given.get("type", "")), rule.family), str(given.get("expr", default)))


def _rewrites(kind: str, given: JsonObject, values: Evaluator) -> Iterator[tuple[Rewrite, Fraction]]:
    """The results of a translation, each with its share."""
    address, port = values.of(given["addr"]) if "addr" in given else "", values.of(given["port"]) if "port" in given else 0
    for share, end in address.choices if isinstance(address, RandomValue) else ((Fraction(1), address),):
        new_port = port
        if isinstance(end, tuple):
            end, new_port = end
        is_known = end is not UNKNOWN
        yield Rewrite(kind, str(end) if is_known else "", new_port if isinstance(new_port, int) else 0), share
