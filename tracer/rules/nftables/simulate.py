# SPDX-License-Identifier: Apache-2.0
"""What a native nftables chain would do to a packet: its expressions, as `nft -j` lists them, evaluated one by one.

An expression that is not known, or asks for what nobody knows, parts the ways in two with a word about it; `numgen` parts them
by chance.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from fractions import Fraction

from tracer.model.evidence import Evidence
from tracer.model.rule import Rule, RuleHit, RuleLocation
from tracer.rules.match_context import MatchContext, assumption, question_of
from tracer.rules.nftables.evaluate import UNKNOWN, Evaluator, RandomValue
from tracer.rules.nftables.format import expression as words
from tracer.rules.nftables.format import operand
from tracer.rules.nftables.json_parser import BaseChain, Expression, NftListing
from tracer.rules.packet_view import PacketView
from tracer.rules.rule_path import MAX_PATHS, Rewrite, RulePath, TooManyPaths, with_condition

_REJECTS = {("icmp", "ip"): "icmp-port-unreachable", ("icmpv6", "ip6"): "icmp6-port-unreachable"}
_IDLE = frozenset({
    "counter", "log", "comment", "notrack", "set", "map", "last", "dup", "ct helper", "ct timeout", "ct expectation",
})  # fmt: skip
"""Statements that the rule goes on behind. "set" and "map" add, update or delete an element: they only stop at a set that is
full."""
_WRITES = re.compile(r"(add|update|delete) @")
"""How the words of such a statement begin, which nft does not write as JSON."""
_CHANGING = re.compile(r"\bmark\b|@")
"""In the words of a match that may answer otherwise when it is asked again: marks, and sets that rules write to."""
_ENDS = {"accept": "ACCEPT", "drop": "DROP", "queue": "QUEUE"}
_NATS = {"dnat": "DNAT", "snat": "SNAT", "masquerade": "MASQUERADE", "redirect": "REDIRECT"}


@dataclass(frozen=True)
class _Frame:
    """A place that was left for another chain. back: the walk comes back to it."""

    place: RuleLocation
    back: bool


@dataclass(frozen=True)
class _Simulation:
    """Before rule number `next` (from 0) of a chain. expression: the next one of that rule."""

    chain: str
    next: int
    rule_path: RulePath
    frames: tuple[_Frame, ...] = ()
    expression: int = 0
    element: str = ""


@dataclass
class NftablesSimulator:
    """The ways through the base chains that nft lists."""

    listed: NftListing
    _world: MatchContext = field(init=False)
    _family: str = field(default="", init=False)
    _table: str = field(default="", init=False)

    def simulate(self, base: BaseChain, packet: PacketView, sport_known: bool, world: MatchContext) -> list[RulePath]:
        """Raises TooManyPaths."""
        self._world = world
        self._family, self._table, chain = base.key
        found: list[RulePath] = []
        open_states = [_Simulation(chain, 0, RulePath(mark=packet.mark, assumed=world.assumed))]
        tried = 0
        while open_states:
            tried += 1
            if len(found) + len(open_states) > MAX_PATHS or tried > 100_000:
                raise TooManyPaths(f"more than {MAX_PATHS} ways")
            state = open_states.pop()
            rules = self.listed.ruleset.chain(self._family, self._table, state.chain)
            if state.next < len(rules):
                values = Evaluator(
                    self.listed, (self._family, self._table), packet, self._world, state.rule_path.mark, sport_known
                )
                for following in self._rule(rules[state.next], state, values, packet):
                    if isinstance(following, RulePath):
                        found.append(following)
                    else:
                        open_states.append(following)
            elif state.frames:
                open_states.append(_back(state))
            else:
                place = RuleLocation(chain, 0)
                hit = RuleHit((place,), None, base.policy, Evidence.DERIVED)
                found.append(replace(state.rule_path, hits=(*state.rule_path.hits, hit), verdict=base.policy))
        return sorted(found, key=lambda w: bool(w.conditions))

    def _rule(self, rule: Rule, state: _Simulation, values: Evaluator, packet: PacketView) -> Iterator[_Simulation | RulePath]:
        """What follows a rule: other places, or ends."""
        body = self.listed.expressions.get((rule.family, rule.table, rule.chain, rule.handle), ())
        passed = replace(state, next=state.next + 1, expression=0)
        way, acted = state.rule_path, False
        for at in range(state.expression, len(body)):
            ((kind, given),) = body[at].items()
            values = replace(values, mark=way.mark)
            if kind == "match":
                true = values.matches(given)
                if true is False:
                    yield replace(passed, rule_path=way)
                    return
                if true is None:
                    text = words(body[at])
                    question = question_of("" if _CHANGING.search(text) else "nft", text, packet)
                    before = assumption(way.assumed, question)
                    if before is None:
                        yield replace(passed, rule_path=with_condition(way, text, False, _where(rule), question))
                        way = with_condition(way, text, True, _where(rule), question)
                    elif not before:
                        yield replace(passed, rule_path=way)
                        return
            elif kind == "mangle":
                acted = True
                if given["key"] == {"meta": {"key": "mark"}}:
                    mark = values.of(given["value"])
                    way = replace(way, mark=mark if isinstance(mark, int) else None)
            elif kind == "vmap":
                yield from self._map(rule, given, replace(passed, rule_path=way), values)
                return
            elif kind in ("jump", "goto"):
                yield self._enter(rule, kind, given["target"], replace(passed, rule_path=way))
                return
            elif kind == "return":
                yield _back(replace(passed, rule_path=_with(way, rule, state.frames, "RETURN")))
                return
            elif kind in _ENDS:
                yield replace(_with(way, rule, state.frames, _ENDS[kind]), verdict=_ENDS[kind])
                return
            elif kind == "reject":
                default = "icmp-port-unreachable" if packet.family == "ip" else "icmp6-port-unreachable"
                told = _REJECTS.get(((given or {}).get("type", ""), rule.family), (given or {}).get("expr", default))
                yield replace(_with(way, rule, state.frames, "REJECT"), verdict="REJECT", reject=told)
                return
            elif kind in _NATS:
                done = _with(way, rule, state.frames, _NATS[kind])
                yield from (replace(done, rewrite=r, share=done.share * s) for r, s in _rewrites(_NATS[kind], given, values))
                return
            elif kind not in _IDLE and not (kind == "text" and _WRITES.match(given)):
                # Not known here: whether the rule goes on behind it cannot be told.
                yield replace(passed, rule_path=with_condition(way, words(body[at]), False, _where(rule)))
                way = with_condition(way, words(body[at]), True, _where(rule))
        yield replace(passed, rule_path=_with(way, rule, state.frames, rule.target or "CONTINUE") if acted else way)

    def _map(self, rule: Rule, given: Expression, state: _Simulation, values: Evaluator) -> Iterator[_Simulation | RulePath]:
        """A verdict map: the element for the key, or all of them by chance, or none and the rule has no effect."""
        choices = values.look_up(given["key"], given["data"])
        if choices is None:
            what = f"an element of {operand(given['data'])} for this packet"
            yield replace(state, rule_path=with_condition(state.rule_path, what, False, _where(rule)))
            return
        rest = Fraction(1)
        for share, text, verdict in choices:
            rest -= share
            way = replace(state.rule_path, share=state.rule_path.share * share)
            word, _, target = verdict.partition(" ")
            if word in ("jump", "goto"):
                yield self._enter(rule, word, target, replace(state, rule_path=way), text)
            elif word in _ENDS:
                yield replace(_with(way, rule, state.frames, _ENDS[word], text), verdict=_ENDS[word])
            elif word == "return":
                yield _back(replace(state, rule_path=_with(way, rule, state.frames, "RETURN", text)))
            else:
                yield replace(state, rule_path=way)
        if rest > 0:
            yield replace(state, rule_path=replace(state.rule_path, share=state.rule_path.share * rest))

    def _enter(self, rule: Rule, kind: str, target: str, state: _Simulation, element: str = "") -> _Simulation:
        way = _with(state.rule_path, rule, state.frames, f"{kind.upper()} {target}", element)
        frame = _Frame(RuleLocation(rule.chain, rule.number), kind == "jump")
        # Where a chain was gone to is not come back to; the frame stays for the path.
        return _Simulation(target, 0, way, (*state.frames, frame))


def _where(rule: Rule) -> str:
    return f"rule {rule.number} of {rule.chain}"


def _back(state: _Simulation) -> _Simulation:
    """The place behind the last jump; at the end of the base chain where there is none."""
    frames = list(state.frames)
    while frames:
        frame = frames.pop()
        if frame.back:
            return _Simulation(frame.place.chain, frame.place.number, state.rule_path, tuple(frames))
    base = state.frames[0].place.chain if state.frames else state.chain
    return _Simulation(base, 1 << 30, state.rule_path, ())


def _with(rule_path: RulePath, rule: Rule, frames: Iterable[_Frame], verdict: str, element: str = "") -> RulePath:
    path = (*(f.place for f in frames), RuleLocation(rule.chain, rule.number))
    return replace(rule_path, hits=(*rule_path.hits, RuleHit(path, rule, verdict, Evidence.DERIVED, element)))


def _rewrites(kind: str, given: Expression | None, values: Evaluator) -> Iterator[tuple[Rewrite, Fraction]]:
    """What a translation makes of the packet, each with its share."""
    given = given or {}
    address, port = values.of(given["addr"]) if "addr" in given else "", values.of(given["port"]) if "port" in given else 0
    for share, told in address.choices if isinstance(address, RandomValue) else ((Fraction(1), address),):
        own = port
        if isinstance(told, tuple):
            told, own = told
        known = told is not UNKNOWN
        yield Rewrite(kind, str(told) if known else "", own if isinstance(own, int) else 0), share
