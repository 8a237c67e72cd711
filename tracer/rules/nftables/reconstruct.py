# SPDX-License-Identifier: Apache-2.0
"""Reconstructs the rule trace of one run of nft_do_chain from its records.

The kernel reports each rule that acted, each end of a chain and the policy, in order. It names a rule only by its handle. The
current chain follows from the jumps, and must be the chain that has the rule in the ruleset.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from tracer.events import record
from tracer.events.nft_trace import NftHit, Trace
from tracer.events.record import CUT, Event, EventRow, Flag, Kind
from tracer.model.evidence import Evidence
from tracer.model.rule import NFT_FAMILIES, Rule, RuleHit, RuleLocation, RuleTrace
from tracer.node import netns
from tracer.rules.nftables.snapshot import Snapshot
from tracer.rules.nftables.verdict import (
    CONTINUE,
    CONTROL_VERDICTS,
    GOTO,
    JUMP,
    MASK,
    RETURN,
    VERDICTS,
    hotdrop_reason,
    signed,
    verdict_name,
)
from tracer.rules.nftables.verdict_maps import TIMEOUT
from tracer.util.octets import c_text, encoded

UNKNOWN_NUMBER = -1
"""Number of a rule with an unknown place in its chain."""
_REGISTER_BYTES = 64
"""Bytes of nftables' registers in a record."""
_CHAIN_BYTES, _TARGET_BYTES = 31, 95
"""Bytes that records have for a name: of a base chain, of the target of a jump."""
_PART_LOST = "a part of the rule trace was lost"


class Snapshots(Protocol):
    """Finds the snapshots of a namespace (netns.identity)."""

    def find(self, space: int, generation: int) -> Snapshot | None:
        """The snapshot of a generation, None = none."""

    def near(self, space: int) -> list[Snapshot]:
        """All snapshots of the namespace, newest first."""


class RefreshedSnapshots(Snapshots, Protocol):
    """Finds snapshots while rules are still being read.

    Attributes:
        updates: Number of updates taken so far.
    """

    updates: int

    def refresh(self) -> None:
        """Takes what was read since the last call. Nothing changes between two calls."""

    def is_coming(self, space: int, generation: int) -> bool:
        """Whether the snapshot of a generation is missing but may still be read."""


def space(hit: NftHit) -> int:
    """The namespace of a hit, as netns.identity."""
    return netns.identity(hit.netns, hit.cookie)


RunKey = tuple[int, int, int, int]
"""Key of one run: time, hop number, base chain and run of the EVENT_CHAIN that ended it. The hop number alone is not unique,
for copies of a packet have their own hop numbers."""


@dataclass
class ChainRun:
    """The records of one run of nft_do_chain, in order. `is_whole`: whether none was lost."""

    hits: list[NftHit] = field(default_factory=list)
    is_whole: bool = True


def run_key(e: Event) -> RunKey:
    """The key of the run that an EVENT_CHAIN ended."""
    return e.time, e.hop, e.object, record.run(e)


def runs(events: Iterable[EventRow]) -> dict[RunKey, ChainRun]:
    """Groups the records of one packet by run.

    A run may lie within another run of the packet or of its copies, also in the same base chain. Records that name their run
    are grouped by it; those of older captures by base chain, separately for copies.

    Args:
        events: Events and hits of one packet, in time order.

    Returns:
        The records of each run, by the key of the EVENT_CHAIN that ended it.
    """
    events = list(events)
    numbers = {(e.flags & Flag.FLAG_CLONE, e.hop) for e in events}
    under_way: dict[tuple[int, int, int], list[NftHit]] = {}
    out: dict[RunKey, ChainRun] = {}
    for e in events:
        is_clone = e.flags & Flag.FLAG_CLONE
        if isinstance(e, NftHit):
            hits = under_way.setdefault((is_clone, e.object, e.run), [])
            if hits and _is_end(hits[-1]):
                hits.clear()  # of a run that ended without an EVENT_CHAIN, at the same place on the stack
            hits.append(e)
        elif e.kind == Kind.EVENT_CHAIN:
            hits = under_way.pop((is_clone, e.object, record.run(e)), [])
            between = range(hits[0].hop + 1, e.hop) if hits else ()
            out[run_key(e)] = ChainRun(hits, all((is_clone, number) in numbers for number in between))
    return out


def _is_end(hit: NftHit) -> bool:
    """Whether this record ends its run."""
    return bool(hit.trace == Trace.TRACE_POLICY or signed(hit.code) >= 0)


@dataclass
class _Frame:
    """A rule that led to another chain. `returns`: whether the packet comes back to it (jump)."""

    location: RuleLocation
    returns: bool


class _Reconstruction:
    """The state of one run.

    Args:
        table: Name of the table.
        base: Name of the base chain.
        is_cut: Whether only the beginning of the base chain's name is known.
        snapshots: Finds the rules.
        is_answered: Whether the answer of a REJECT was seen.
    """

    def __init__(self, table: str, base: str, is_cut: bool, snapshots: Snapshots, is_answered: bool) -> None:
        self.table, self.chain, self._snapshots = table, base, snapshots
        self._is_cut, self._is_answered = is_cut, is_answered
        self.frames: list[_Frame] = []
        self.hits: list[RuleHit] = []
        self.undecided = ""
        self.has_ended = False

    def add(self, hit: NftHit) -> None:
        """Takes the next record."""
        code = signed(hit.code)
        if hit.trace == Trace.TRACE_POLICY:
            location = RuleLocation(self._name, 0)
            self.hits.append(RuleHit((location,), None, VERDICTS.get(hit.policy, ""), Evidence.OBSERVED))
            self.has_ended = True
            return
        if hit.handle == 0 and code == CONTINUE:
            self._return()
            return
        rule, evidence, snapshot = self._rule(hit)
        if rule.number != UNKNOWN_NUMBER:
            self._check_chain(rule)
        location = RuleLocation(self._name, rule.number)
        path = (*(f.location for f in self.frames), location)
        to, is_cut = _jump_target(hit, self._snapshots) if code in (JUMP, GOTO) else ("", False)
        self.hits.append(self._hit(path, rule, evidence, hit, to + CUT * is_cut, snapshot))
        if to:
            self.frames.append(_Frame(location, code == JUMP))
            self.chain, self._is_cut = to, is_cut
        elif code == RETURN:
            self._return()
        elif code >= 0:
            self.has_ended = True

    @property
    def _name(self) -> str:
        return self.chain + CUT if self._is_cut else self.chain

    def _check_chain(self, rule: Rule) -> None:
        """Checks that the rule is in the current chain. Of a name that was cut only the beginning can be compared."""
        if self._is_cut and rule.chain.startswith(self.chain):
            self.chain, self._is_cut = rule.chain, False
        elif rule.chain != self.chain and not self.undecided:
            self.undecided = f"rule {rule.handle} is in {rule.chain}, but the rule trace is in {self.chain}"

    def _return(self) -> None:
        """Returns to the last jump. A goto does not return."""
        while self.frames:
            frame = self.frames.pop()
            self.chain, self._is_cut = frame.location.chain, False
            if frame.returns:
                return

    def _hit(
        self, path: tuple[RuleLocation, ...], rule: Rule, evidence: Evidence, hit: NftHit, to: str, snapshot: Snapshot | None
    ) -> RuleHit:
        code, key = signed(hit.code), (hit.table_handle, hit.handle)
        if not snapshot:
            return RuleHit(path, rule, verdict_name(code, rule, to, True), evidence)
        matches, lookup = snapshot.hotdrop_matches.get(key, ()), snapshot.lookups.get(key)
        # If something else in the rule may have dropped the packet, only an answer shows that REJECT did.
        is_answered = self._is_answered or not (matches or lookup)
        is_jump = (rule.family, rule.table, rule.target) in snapshot.ruleset.chains
        why = hotdrop_reason(code, rule, is_jump, matches)
        element = _element(snapshot, hit, snapshot.number == hit.generation)
        return RuleHit(path, rule, verdict_name(code, rule, to, is_answered), evidence, element, why)

    def _rule(self, hit: NftHit) -> tuple[Rule, Evidence, Snapshot | None]:
        """(rule of a hit, how its place is known, the snapshot that has it, None = no snapshot)."""
        key = hit.table_handle, hit.handle
        snapshot = self._snapshots.find(space(hit), hit.generation)
        if snapshot and key in snapshot.rules:
            return snapshot.rules[key], Evidence.OBSERVED, snapshot
        for other in self._snapshots.near(space(hit)):
            if key in other.rules:
                return other.rules[key], Evidence.DERIVED, other
        why = "could not be read in time" if snapshot is None else "do not contain it"
        self.undecided = self.undecided or f"the rules of generation {hit.generation} {why}"
        rule = Rule(
            NFT_FAMILIES.get(hit.family, ""), self.table, self.chain, UNKNOWN_NUMBER, "", "", c_text(hit.to), hit.handle
        )
        return rule, Evidence.OBSERVED, None


def _candidates(hit: NftHit, snapshots: Snapshots) -> list[Snapshot]:
    """The snapshot of a hit's generation if it was read, then all others of its namespace, newest first."""
    found = snapshots.find(space(hit), hit.generation)
    return ([found] if found else []) + snapshots.near(space(hit))


def names(chain: Event, run: ChainRun, snapshots: Snapshots) -> tuple[str, str]:
    """(table name, base chain name) from the snapshots, "" = not known. Long names do not fit into an event."""
    if not run.hits:
        return "", ""
    hit = run.hits[0]
    table = base = ""
    for snapshot in _candidates(hit, snapshots):
        table = table or snapshot.tables.get(hit.table_handle, "")
        base = base or snapshot.chains.get((hit.table_handle, hit.chain_handle), "")
    return table if _has_prefix(table, chain.table) else "", base if _has_prefix(base, chain.chain) else ""


def hop_names(chain: Event, run: ChainRun, snapshots: Snapshots) -> tuple[str, str]:
    """The names of the table, with its family, and of the base chain; "" = the snapshots do not have the whole name."""
    table, base = names(chain, run, snapshots)
    family = NFT_FAMILIES.get(chain.state, "")
    return f"{family} {table}".strip() if table else "", base


def reconstruct(chain: Event, run: ChainRun, snapshots: Snapshots, is_whole: bool = True) -> RuleTrace:
    """Reconstructs the rule trace of one run.

    Args:
        chain: The EVENT_CHAIN that ended it.
        run: Its records.
        snapshots: Finds the rules.
        is_whole: Whether no record of the packet was lost; after a loss a run may lack its end.
    """
    table, base = names(chain, run, snapshots)
    is_cut = not base and _is_cut(chain.chain, _CHAIN_BYTES)
    is_answered = bool(chain.flags & Flag.FLAG_REJECT)
    reconstruction = _Reconstruction(table or c_text(chain.table), base or c_text(chain.chain), is_cut, snapshots, is_answered)
    hits = run.hits
    for hit in hits:
        reconstruction.add(hit)
    undecided = reconstruction.undecided
    if not undecided and (not reconstruction.has_ended or not _agrees(reconstruction.hits[-1], hits[-1], chain)):
        undecided = "the rules that acted were not seen" if is_whole else _PART_LOST
    if not run.is_whole:
        undecided = undecided or _PART_LOST
    snapshot = snapshots.find(space(hits[0]), hits[0].generation) if hits else None
    return RuleTrace(tuple(reconstruction.hits), undecided=undecided, ruleset=snapshot.ruleset if snapshot else None)


def generations(events: Iterable[EventRow]) -> set[tuple[int, int]]:
    """The namespaces and generations of the hits of a packet."""
    return {(space(e), e.generation) for e in events if isinstance(e, NftHit)}


def _agrees(last: RuleHit, hit: NftHit, chain: Event) -> bool:
    decided = hit.policy if hit.trace == Trace.TRACE_POLICY else signed(hit.code) & MASK
    return bool(decided == chain.verdict)


def _is_cut(recorded: bytes, room: int) -> bool:
    """Whether a name may have been longer than the room of a record, in bytes."""
    return len(recorded.split(b"\0")[0]) >= room


def _has_prefix(name: str, recorded: bytes) -> bool:
    """Whether a name begins with the name in a record, which may end within a character."""
    return encoded(name).startswith(recorded.split(b"\0")[0])


def _jump_target(hit: NftHit, snapshots: Snapshots) -> tuple[str, bool]:
    """(target chain of a jump, whether its name may have been cut): a record has no room for a very long name."""
    name, is_cut = c_text(hit.to), _is_cut(hit.to, _TARGET_BYTES)
    for snapshot in _candidates(hit, snapshots):
        known = snapshot.chains.get((hit.table_handle, hit.to_handle), "")
        if known == name or (is_cut and _has_prefix(known, hit.to)):
            return known, False
    return name, is_cut


def map_keys(hits: Iterable[NftHit], snapshots: Snapshots) -> list[tuple[NftHit, int, int]] | None:
    """(hit, begin, end) of the key in the registers of each hit that looked up a verdict map; bytes.

    None if what a hit says also depends on its time, because elements of its map time out.
    """
    keys: list[tuple[NftHit, int, int]] = []
    for hit in hits:
        for snapshot in _candidates(hit, snapshots):
            found = snapshot.lookups.get((hit.table_handle, hit.handle))
            if found and found[0].flags & TIMEOUT:
                return None
            if found:
                keys.append((hit, found[1], found[1] + found[0].key_length))
    return keys


def _element(snapshot: Snapshot, hit: NftHit, is_in_force: bool) -> str:
    """The element of the verdict map that gave a rule's verdict, as nft lists it; "" if it is not exactly one.

    The kernel reports the verdict, not the element. An element may have timed out since the map was read, so that another one
    gave the verdict. So exactly one of the elements that may answer for the key must have this verdict. A catch-all element is
    not used if the snapshot is of another generation, which may lack elements (before 5.12 the kernel does not report the
    generation that a packet met), or if the map was read after the hit, when elements may have timed out.

    Args:
        snapshot: The rules.
        hit: The hit.
        is_in_force: Whether the snapshot is of the hit's generation.
    """
    found = snapshot.lookups.get((hit.table_handle, hit.handle))
    if not found:
        return ""
    verdicts, at = found
    registers = hit.registers.ljust(_REGISTER_BYTES, b"\0")
    key = registers[at : at + verdicts.key_length]
    elements = [e for e in verdicts.answers(key) if _is_verdict_of(e.verdict, hit, snapshot)]
    if len(elements) != 1:
        return ""
    if elements[0].is_catch_all and (not is_in_force or (verdicts.flags & TIMEOUT and not 0 < snapshot.taken <= hit.time)):
        return ""
    return verdicts.write(elements[0])


def _is_verdict_of(verdict: str, hit: NftHit, snapshot: Snapshot) -> bool:
    """Whether a verdict as nft writes it ("goto X") is that of the hit."""
    word, _, to = verdict.partition(" ")
    code = signed(hit.code)
    if CONTROL_VERDICTS.get(code, VERDICTS.get(code & MASK, "")) != word.upper():
        return False
    known = snapshot.chains.get((hit.table_handle, hit.to_handle), "")
    return to == known if known else to == c_text(hit.to) or (_is_cut(hit.to, _TARGET_BYTES) and _has_prefix(to, hit.to))
