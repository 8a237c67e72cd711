"""From the records of one run of nft_do_chain to the walk of the packet through it.

The kernel tells each rule that acted, each end of a chain and the policy, in order. A rule is told by its handle only; where
the walk is follows from the jumps, and must agree with the chain that the ruleset has the rule in.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tracer.model import Evidence
from tracer.record import Event, Flag, Kind, NftHit, Trace
from tracer.rules.model import NFT_FAMILIES, Place, Rule, Visit, Walk
from tracer.rules.nft import Snapshot

CONTINUE, JUMP, GOTO, RETURN = -1, -3, -4, -5
VERDICT_MASK, STOLEN = 0xFF, 2
UNKNOWN = -1
"""The number of a rule whose place in the chain is not known."""
_REGISTERS = 64
_VERDICTS = {0: "DROP", 1: "ACCEPT", 2: "STOLEN", 3: "QUEUE"}
_WORDS = {CONTINUE: "CONTINUE", JUMP: "JUMP", GOTO: "GOTO", RETURN: "RETURN"}
_MARKED = frozenset({"ACCEPT", "DROP", "RETURN", "QUEUE"})


class Snapshots(Protocol):
    """Where the rules of a namespace at a generation are found."""

    def find(self, inode: int, generation: int) -> Snapshot | None: ...

    def near(self, inode: int) -> list[Snapshot]: ...


class Reading(Snapshots, Protocol):
    """The same while rules are still being read. refresh: takes what was read since the last call; nothing changes between."""

    def refresh(self) -> None: ...

    def coming(self, inode: int, generation: int) -> bool: ...


def runs(events: Iterable[Any]) -> dict[int, list[NftHit]]:
    """The records of each run, by the hop number of the EVENT_CHAIN that ended it. events: of one packet, in order of time."""
    open_runs: dict[tuple[int, int], list[NftHit]] = {}
    out: dict[int, list[NftHit]] = {}
    for e in events:
        if e.kind == Kind.EVENT_NFT_RULE:
            open_runs.setdefault((e.flags & Flag.FLAG_CLONE, e.object), []).append(e)
        elif e.kind == Kind.EVENT_CHAIN:
            out[e.hop] = open_runs.pop((e.flags & Flag.FLAG_CLONE, e.object), [])
    return out


@dataclass
class _Frame:
    """A place that was left for another chain. back: the walk comes back to it."""

    place: Place
    back: bool


class _Walker:
    """One run under way."""

    def __init__(self, table: str, base: str, snapshots: Snapshots) -> None:
        self.table, self.chain, self._snapshots = table, base, snapshots
        self.frames: list[_Frame] = []
        self.visits: list[Visit] = []
        self.doubt = ""
        self.ended = False

    def take(self, hit: NftHit) -> None:
        code = _signed(hit.code)
        if hit.trace == Trace.TRACE_POLICY:
            place = Place(self.chain, 0)
            self.visits.append(Visit((place,), None, _VERDICTS.get(hit.policy, ""), Evidence.OBSERVED))
            self.ended = True
            return
        if hit.handle == 0 and code == CONTINUE:
            self._back()
            return
        rule, evidence, lookup = self._rule(hit)
        if rule.text and rule.chain != self.chain:
            self.doubt = self.doubt or f"rule {hit.handle} is in {rule.chain}, and the walk was seen in {self.chain}"
        place = Place(self.chain, rule.number)
        path = (*(f.place for f in self.frames), place)
        to = _to(hit, self._snapshots) if code in (JUMP, GOTO) else ""
        self.visits.append(Visit(path, rule, _verdict(code, rule, to), evidence, lookup))
        if to:
            self.frames.append(_Frame(place, code == JUMP))
            self.chain = to
        elif code == RETURN:
            self._back()
        elif code >= 0:
            self.ended = True

    def _back(self) -> None:
        """To where the last jump was: a goto is not come back to."""
        while self.frames:
            frame = self.frames.pop()
            self.chain = frame.place.chain
            if frame.back:
                return

    def _rule(self, hit: NftHit) -> tuple[Rule, Evidence, str]:
        """The rule of a hit, how its place is known, and the map element that answered."""
        key = hit.table_handle, hit.handle
        snapshot = self._snapshots.find(hit.netns, hit.generation)
        if snapshot and key in snapshot.rules:
            return snapshot.rules[key], Evidence.OBSERVED, _element(snapshot, hit)
        for other in self._snapshots.near(hit.netns):
            if key in other.rules:
                return other.rules[key], Evidence.DERIVED, _element(other, hit)
        why = "could not be read in time" if snapshot is None else "did not hold it"
        self.doubt = self.doubt or f"the rules of generation {hit.generation} {why}"
        rule = Rule(NFT_FAMILIES.get(hit.family, ""), self.table, self.chain, UNKNOWN, "", "", _text(hit.to), hit.handle)
        return rule, Evidence.OBSERVED, ""


def walk(chain: Event, hits: Sequence[NftHit], snapshots: Snapshots, whole: bool = True) -> Walk:
    """The walk of one run. chain: the EVENT_CHAIN that ended it. whole: False when records of the packet were lost: then a run
    without an end is no wonder."""
    walker = _Walker(_text(chain.table), _text(chain.chain), snapshots)
    for hit in hits:
        walker.take(hit)
    doubt = walker.doubt
    if not doubt and (not walker.ended or not _agrees(walker.visits[-1], hits[-1], chain)):
        doubt = "the rules that acted were not seen" if whole else "a part of what the rules did was lost"
    snapshot = snapshots.find(hits[0].netns, hits[0].generation) if hits else None
    return Walk(tuple(walker.visits), undecided=doubt, ruleset=snapshot.ruleset if snapshot else None)


def generations(events: Iterable[Any]) -> set[tuple[int, int]]:
    """The namespaces and generations that hits of a packet belong to."""
    return {(e.netns, e.generation) for e in events if e.kind == Kind.EVENT_NFT_RULE}


def _agrees(last: Visit, hit: NftHit, chain: Event) -> bool:
    decided = hit.policy if hit.trace == Trace.TRACE_POLICY else _signed(hit.code) & VERDICT_MASK
    return bool(decided == chain.verdict)


def _signed(code: int) -> int:
    """NFT_CONTINUE to NFT_RETURN are negative; NF_QUEUE with a high queue number only looks so."""
    return code - (1 << 32) if code >= (1 << 32) + RETURN else code


def _text(name: bytes) -> str:
    return name.split(b"\0")[0].decode(errors="replace")


def _to(hit: NftHit, snapshots: Snapshots) -> str:
    """The chain a jump leads to; its name is cut short in the record when it is very long."""
    name = _text(hit.to)
    snapshot = snapshots.find(hit.netns, hit.generation)
    known = snapshot.chains.get((hit.table_handle, hit.to_handle), "") if snapshot else ""
    return known if known.startswith(name) else name


def _verdict(code: int, rule: Rule, to: str) -> str:
    """What a rule did, in a word: its target where that says more than the kernel's verdict."""
    if code in (JUMP, GOTO):
        return f"{'JUMP' if code == JUMP else 'GOTO'} {to}"
    if code == RETURN:
        return "RETURN"
    if code == CONTINUE:
        return rule.target or "CONTINUE"
    word = _VERDICTS.get(code & VERDICT_MASK, str(code))
    return rule.target if rule.target and rule.target.isupper() and rule.target not in _MARKED else word


def _element(snapshot: Snapshot, hit: NftHit) -> str:
    """The element of the verdict map that a rule's verdict came from; "" when it has none, or another one: the map was another
    then (before 5.12 the kernel does not tell which generation of the rules a packet met)."""
    found = snapshot.lookups.get((hit.table_handle, hit.handle))
    if not found:
        return ""
    verdicts, at = found
    registers = hit.registers.ljust(_REGISTERS, b"\0")
    element = verdicts.find(registers[at : at + verdicts.key_length])
    return verdicts.write(element) if element and _did(element.verdict, hit) else ""


def _did(verdict: str, hit: NftHit) -> bool:
    """Whether a verdict as nft writes it, "goto X", is the hit's."""
    word, _, to = verdict.partition(" ")
    code = _signed(hit.code)
    return to.startswith(_text(hit.to)) and _WORDS.get(code, _VERDICTS.get(code & VERDICT_MASK, "")) == word.upper()
