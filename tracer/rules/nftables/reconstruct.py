# SPDX-License-Identifier: Apache-2.0
"""From the records of one run of nft_do_chain to the walk of the packet through it.

The kernel tells each rule that acted, each end of a chain and the policy, in order. A rule is told by its handle only; where
the walk is follows from the jumps, and must agree with the chain that the ruleset has the rule in.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

from tracer.events import record
from tracer.events.record import CUT, Event, Flag, Kind, NftHit, Trace
from tracer.model.evidence import Evidence
from tracer.model.rule import NFT_FAMILIES, Rule, RuleHit, RuleLocation, RuleTrace
from tracer.node import netns
from tracer.rules.nftables.snapshot import Snapshot
from tracer.rules.nftables.verdict import CONTINUE, GOTO, JUMP, MASK, RETURN, VERDICTS, WORDS, signed, thrown, word
from tracer.rules.nftables.verdict_maps import TIMEOUT
from tracer.util.octets import c_text, encoded

UNKNOWN = -1
"""The number of a rule whose place in the chain is not known."""
_REGISTERS = 64
_NAME, _TO = 31, 95
"""Bytes of a name that records have room for: of a base chain, of where a jump leads."""
_PART_LOST = "a part of what the rules did was lost"


class Snapshots(Protocol):
    """Where the rules of a namespace (netns.identity) at a generation are found."""

    def find(self, space: int, generation: int) -> Snapshot | None: ...

    def near(self, space: int) -> list[Snapshot]: ...


class RefreshedSnapshots(Snapshots, Protocol):
    """The same while rules are still being read. refresh: takes what was read since the last call; nothing changes between."""

    def refresh(self) -> None: ...

    def is_coming(self, space: int, generation: int) -> bool: ...


def space(hit: NftHit) -> int:
    """The namespace of a hit."""
    return netns.identity(hit.netns, hit.cookie)


RunKey = tuple[int, int, int, int]
"""What names one run: time, hop number, base chain and run of the EVENT_CHAIN that ended it. Copies of a packet count their
hops side by side, so that the number alone would not do."""


@dataclass
class ChainRun:
    """The records of one run of nft_do_chain, in order. whole: none of them was lost."""

    hits: list[NftHit] = field(default_factory=list)
    whole: bool = True


def run_key(e: Event) -> RunKey:
    """Of an EVENT_CHAIN."""
    return e.time, e.hop, e.object, record.run(e)


def runs(events: Iterable[Any]) -> dict[RunKey, ChainRun]:
    """The records of each run, by the EVENT_CHAIN that ended it. events: of one packet, in order of time.

    Runs of one packet may lie within another, of the packet or of its copies, also in one base chain. Records of kernels that
    say which run they are of are put together by that; those of older captures by base chain, apart for copies.
    """
    events = list(events)
    numbers = {(e.flags & Flag.FLAG_CLONE, e.hop) for e in events}
    under_way: dict[tuple[int, int, int], list[NftHit]] = {}
    out: dict[RunKey, ChainRun] = {}
    for e in events:
        copy = e.flags & Flag.FLAG_CLONE
        if e.kind == Kind.EVENT_NFT_RULE:
            hits = under_way.setdefault((copy, e.object, e.run), [])
            if hits and _is_end(hits[-1]):
                hits.clear()  # of a run that ended without an EVENT_CHAIN, at the same place on the stack
            hits.append(e)
        elif e.kind == Kind.EVENT_CHAIN:
            hits = under_way.pop((copy, e.object, record.run(e)), [])
            between = range(hits[0].hop + 1, e.hop) if hits else ()
            out[run_key(e)] = ChainRun(hits, all((copy, number) in numbers for number in between))
    return out


def _is_end(hit: NftHit) -> bool:
    """Whether a run is over with this record."""
    return bool(hit.trace == Trace.TRACE_POLICY or signed(hit.code) >= 0)


@dataclass
class _Frame:
    """A place that was left for another chain. back: the walk comes back to it."""

    place: RuleLocation
    back: bool


class _Reconstruction:
    """One run under way. is_cut: of the base chain's name only the beginning is known. answered: REJECT's answer was seen."""

    def __init__(self, table: str, base: str, is_cut: bool, snapshots: Snapshots, answered: bool) -> None:
        self.table, self.chain, self._snapshots = table, base, snapshots
        self._is_cut, self._answered = is_cut, answered
        self.frames: list[_Frame] = []
        self.visits: list[RuleHit] = []
        self.doubt = ""
        self.ended = False

    def take(self, hit: NftHit) -> None:
        code = signed(hit.code)
        if hit.trace == Trace.TRACE_POLICY:
            place = RuleLocation(self._name, 0)
            self.visits.append(RuleHit((place,), None, VERDICTS.get(hit.policy, ""), Evidence.OBSERVED))
            self.ended = True
            return
        if hit.handle == 0 and code == CONTINUE:
            self._back()
            return
        rule, evidence, snapshot = self._rule(hit)
        if rule.number != UNKNOWN:
            self._agree(rule)
        place = RuleLocation(self._name, rule.number)
        path = (*(f.place for f in self.frames), place)
        to, is_cut = _to(hit, self._snapshots) if code in (JUMP, GOTO) else ("", False)
        self.visits.append(self._hit(path, rule, evidence, hit, to + CUT * is_cut, snapshot))
        if to:
            self.frames.append(_Frame(place, code == JUMP))
            self.chain, self._is_cut = to, is_cut
        elif code == RETURN:
            self._back()
        elif code >= 0:
            self.ended = True

    @property
    def _name(self) -> str:
        return self.chain + CUT if self._is_cut else self.chain

    def _agree(self, rule: Rule) -> None:
        """The rule must be of the chain that the walk is in; of a name that was cut only the beginning can be compared."""
        if self._is_cut and rule.chain.startswith(self.chain):
            self.chain, self._is_cut = rule.chain, False
        elif rule.chain != self.chain and not self.doubt:
            self.doubt = f"rule {rule.handle} is in {rule.chain}, and the walk was seen in {self.chain}"

    def _back(self) -> None:
        """To where the last jump was: a goto is not come back to."""
        while self.frames:
            frame = self.frames.pop()
            self.chain, self._is_cut = frame.place.chain, False
            if frame.back:
                return

    def _hit(
        self, path: tuple[RuleLocation, ...], rule: Rule, evidence: Evidence, hit: NftHit, to: str, snapshot: Snapshot | None
    ) -> RuleHit:
        code, key = signed(hit.code), (hit.table_handle, hit.handle)
        if not snapshot:
            return RuleHit(path, rule, word(code, rule, to, True), evidence)
        matches, lookup = snapshot.throwing.get(key, ()), snapshot.lookups.get(key)
        # Where something else in the rule may have dropped the packet, only an answer shows that REJECT did.
        answered = self._answered or not (matches or lookup)
        leads_on = (rule.family, rule.table, rule.target) in snapshot.ruleset.chains
        why = thrown(code, rule, leads_on, matches)
        element = _element(snapshot, hit, snapshot.number == hit.generation)
        return RuleHit(path, rule, word(code, rule, to, answered), evidence, element, why)

    def _rule(self, hit: NftHit) -> tuple[Rule, Evidence, Snapshot | None]:
        """The rule of a hit, how its place is known, and the rules it was found in."""
        key = hit.table_handle, hit.handle
        snapshot = self._snapshots.find(space(hit), hit.generation)
        if snapshot and key in snapshot.rules:
            return snapshot.rules[key], Evidence.OBSERVED, snapshot
        for other in self._snapshots.near(space(hit)):
            if key in other.rules:
                return other.rules[key], Evidence.DERIVED, other
        why = "could not be read in time" if snapshot is None else "did not hold it"
        self.doubt = self.doubt or f"the rules of generation {hit.generation} {why}"
        rule = Rule(NFT_FAMILIES.get(hit.family, ""), self.table, self.chain, UNKNOWN, "", "", c_text(hit.to), hit.handle)
        return rule, Evidence.OBSERVED, None


def _candidates(hit: NftHit, snapshots: Snapshots) -> list[Snapshot]:
    """The rules of a hit's generation if they were read, then all others of its namespace, the newest first."""
    found = snapshots.find(space(hit), hit.generation)
    return ([found] if found else []) + snapshots.near(space(hit))


def names(chain: Event, run: ChainRun, snapshots: Snapshots) -> tuple[str, str]:
    """The names of table and base chain, "" for what the rules read do not tell. Long ones do not fit into an event."""
    if not run.hits:
        return "", ""
    hit = run.hits[0]
    table = base = ""
    for snapshot in _candidates(hit, snapshots):
        table = table or snapshot.tables.get(hit.table_handle, "")
        base = base or snapshot.chains.get((hit.table_handle, hit.chain_handle), "")
    return table if _begins(table, chain.table) else "", base if _begins(base, chain.chain) else ""


def named(chain: Event, run: ChainRun, snapshots: Snapshots) -> dict[str, str]:
    """The fields of a hop that name table and base chain, as far as the rules that were read know them whole."""
    table, base = names(chain, run, snapshots)
    family = NFT_FAMILIES.get(chain.state, "")
    return ({"table": f"{family} {table}".strip()} if table else {}) | ({"chain": base} if base else {})


def reconstruct(chain: Event, run: ChainRun, snapshots: Snapshots, whole: bool = True) -> RuleTrace:
    """The walk of one run. chain: the EVENT_CHAIN that ended it. whole: False when records of the packet were lost: then a run
    without an end is no wonder."""
    table, base = names(chain, run, snapshots)
    is_cut = not base and _is_cut(chain.chain, _NAME)
    answered = bool(chain.flags & Flag.FLAG_REJECT)
    walker = _Reconstruction(table or c_text(chain.table), base or c_text(chain.chain), is_cut, snapshots, answered)
    hits = run.hits
    for hit in hits:
        walker.take(hit)
    doubt = walker.doubt
    if not doubt and (not walker.ended or not _agrees(walker.visits[-1], hits[-1], chain)):
        doubt = "the rules that acted were not seen" if whole else _PART_LOST
    if not run.whole:
        doubt = doubt or _PART_LOST
    snapshot = snapshots.find(space(hits[0]), hits[0].generation) if hits else None
    return RuleTrace(tuple(walker.visits), undecided=doubt, ruleset=snapshot.ruleset if snapshot else None)


def generations(events: Iterable[Any]) -> set[tuple[int, int]]:
    """The namespaces and generations that hits of a packet belong to."""
    return {(space(e), e.generation) for e in events if e.kind == Kind.EVENT_NFT_RULE}


def _agrees(last: RuleHit, hit: NftHit, chain: Event) -> bool:
    decided = hit.policy if hit.trace == Trace.TRACE_POLICY else signed(hit.code) & MASK
    return bool(decided == chain.verdict)


def _is_cut(told: bytes, room: int) -> bool:
    """Whether a name may have been longer than what a record had room for, in bytes."""
    return len(told.split(b"\0")[0]) >= room


def _begins(name: str, told: bytes) -> bool:
    """Whether a name begins with what a record has of it; the record's may end within a character."""
    return encoded(name).startswith(told.split(b"\0")[0])


def _to(hit: NftHit, snapshots: Snapshots) -> tuple[str, bool]:
    """The chain a jump leads to, and whether its name may have been cut: the record has no room for a very long one."""
    name, is_cut = c_text(hit.to), _is_cut(hit.to, _TO)
    for snapshot in _candidates(hit, snapshots):
        known = snapshot.chains.get((hit.table_handle, hit.to_handle), "")
        if known == name or (is_cut and _begins(known, hit.to)):
            return known, False
    return name, is_cut


def _element(snapshot: Snapshot, hit: NftHit, in_force: bool) -> str:
    """The element of the verdict map that a rule's verdict came from; "" where the map does not tell just one.

    The kernel tells the verdict and not the element. An element may have timed out since the map was read, and another one have
    answered: so the verdict must be that of one element only of those that may answer for the key. in_force: the snapshot is of
    the hit's generation. Another's may lack elements, so that its catch-all says nothing (before 5.12 the kernel does not tell
    which generation a packet met); nor does that of a map which was read after the hit, when elements may have timed out.
    """
    found = snapshot.lookups.get((hit.table_handle, hit.handle))
    if not found:
        return ""
    verdicts, at = found
    registers = hit.registers.ljust(_REGISTERS, b"\0")
    may = [e for e in verdicts.answers(registers[at : at + verdicts.key_length]) if _did(e.verdict, hit, snapshot)]
    if len(may) != 1:
        return ""
    if may[0].is_catch_all and (not in_force or (verdicts.flags & TIMEOUT and not 0 < snapshot.taken <= hit.time)):
        return ""
    return verdicts.write(may[0])


def _did(verdict: str, hit: NftHit, snapshot: Snapshot) -> bool:
    """Whether a verdict as nft writes it, "goto X", is the hit's."""
    word, _, to = verdict.partition(" ")
    code = signed(hit.code)
    if WORDS.get(code, VERDICTS.get(code & MASK, "")) != word.upper():
        return False
    known = snapshot.chains.get((hit.table_handle, hit.to_handle), "")
    return to == known if known else to == c_text(hit.to) or (_is_cut(hit.to, _TO) and _begins(to, hit.to))
