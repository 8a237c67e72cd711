# SPDX-License-Identifier: Apache-2.0
"""Legacy iptables: resolves the rules, of which generation, that acted on a packet.

An event names the rules by the address of the kernel's blob. Four classes know a part each: what an address stood for and when
(generation.py), what is being read (request_queue.py), which blob a thread looked up (lookup_history.py), and the paths of
packets through the rules (path_cache.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from tracer.events.record import Event
from tracer.events.table_trace import RECORDS, REPLACED, WATCHED, TableLookup, TableReplaced, TableTrace
from tracer.model.rule import ChainKey, Rule, Ruleset, RuleTrace
from tracer.rules.iptables.entry import MalformedTable
from tracer.rules.iptables.generation import Generation, GenerationLog
from tracer.rules.iptables.lookup_history import LookupHistory
from tracer.rules.iptables.path_cache import PathCache, TestedPort
from tracer.rules.iptables.request_queue import RequestQueue, TableSource
from tracer.rules.iptables.table import Table
from tracer.rules.iptables.table_reader import TableRequest, TableSnapshot
from tracer.util.lazy import Lazy

TRIES = 5
"""Most requests for one generation."""
GONE = "the rules then in force were replaced before they could be read"
FORGOTTEN = "the rules then in force are no longer kept: they have been replaced too often since"


class TableGenerations:
    """The legacy tables of all namespaces, with their generations.

    Args:
        reader: Reads tables in the background.
        watched: Whether the function of (kind, name, revision, family) is watched.

    Attributes:
        shed: Number of generations given up, and of tables not requested because of a bound, by kind.
        tested: Ports on which the rule trace that was reconstructed last depends, with the ranges that they were compared with.
    """

    def __init__(self, reader: TableSource, watched: Callable[[tuple[str, str, int, str]], bool]) -> None:
        self._log, self._lookups, self._paths = GenerationLog(), LookupHistory(), PathCache(watched)
        self._requests = RequestQueue(reader, self._log.shed)
        self.shed = self._log.shed
        self.tested: frozenset[TestedPort] = frozenset()

    def request(self, request: TableRequest) -> bool:
        """Requests a table, unless it is already being read. Returns False if too many tables wait to be read."""
        return self._requests.request(request)

    def expect(self, request: TableRequest) -> None:
        """Announces a snapshot that was requested elsewhere. Beyond MAX_REQUESTS tables it is not waited for."""
        self._requests.expect(request)

    def add_changes(self, changes: Iterable[TableLookup | TableReplaced]) -> None:
        """Takes the look-ups and replacements of a drain, then the snapshots that had been read before that drain."""
        for change in changes:
            if isinstance(change, TableLookup):
                self._lookups.add(change)
            else:
                self._replace(change)
        for snapshot in self._requests.read():
            self._take(snapshot)
        if not self._requests:
            self._lookups.clear()

    def _replace(self, change: TableReplaced) -> None:
        replaced = self._log.replace(change)
        lookup = self._lookups.last(change.thread)
        if lookup:
            request = TableRequest(lookup.netns, lookup.family, lookup.table)
            replaced.sent = self._requests.under_way(request)
            self._requests.request_again(request)

    def _take(self, snapshot: TableSnapshot) -> None:
        request = snapshot.request
        self._requests.answer(request)
        if not request.table:
            return
        lookups = self._lookups.of(snapshot)
        objects = {x.object for x in lookups}
        if not objects:
            self._requests.fail(request, snapshot.why or "it is not known which generation of the rules was read")
            return
        # A look-up holds the table's lock, so its blob is in force at that time. Until the reading ends it may be replaced, and
        # its address may stand for other rules.
        generation = self._log.at(lookups[-1].object, lookups[-1].time)
        if len(objects) == 1 and snapshot.table and self._log.at(lookups[0].object, lookups[0].time) is generation:
            self._log.read(generation, snapshot)
        elif not generation.until:
            generation.why = snapshot.why

    def _generation_of(self, e: Event) -> Generation:
        """The generation that a TABLE event belongs to."""
        generation = self._log.at(e.object, e.time)
        if generation.snapshot and not generation.until and generation.snapshot.request != _request_of(e):
            # Its table was removed with its namespace, which no event reports.
            generation = self._log.restart(generation, e.time)
        return generation

    def request_for(self, e: Event) -> None:
        """Requests the rules that a TABLE event belongs to, if they can still be read."""
        generation = self._generation_of(e)
        if generation.snapshot or generation.until or generation.requests >= TRIES:
            return
        request = _request_of(e)
        if request not in self._requests:
            generation.requests += self.request(request)

    def is_waiting_for(self, e: Event) -> bool:
        """Whether the rules of a TABLE event are being read."""
        generation = self._generation_of(e)
        self.request_for(e)
        if generation.snapshot or generation.until:
            return self._is_coming(generation)
        return _request_of(e) in self._requests

    def is_settled(self, e: Event) -> bool:
        """Whether the rules of a TABLE event have been read, or can no longer be read."""
        generation = self._generation_of(e)
        return bool(generation.snapshot or generation.until) and not self._is_coming(generation)

    def _is_coming(self, generation: Generation) -> bool:
        """Whether the snapshot of a replaced generation may still arrive: a reading may have begun before the replacement."""
        return not generation.snapshot and generation.sent is not None and not self._requests.are_answered(generation.sent)

    @property
    def changes(self) -> int:
        """Number of changes so far of what is known of tables."""
        return self._log.changes

    @property
    def replaced_at(self) -> int:
        """Time of the last replacement of a table, ns, CLOCK_MONOTONIC, 0 = none."""
        return self._log.replaced_at

    @property
    def is_reading(self) -> bool:
        """Whether any table is being read."""
        return bool(self._requests)

    def reconstruct(self, e: Event, table_traces: list[TableTrace]) -> RuleTrace:
        """The rule trace of a TABLE event. `table_traces`: the records of its steps."""
        generation = self._generation_of(e)
        self.tested = frozenset()
        if not generation.snapshot or not generation.snapshot.table:
            if generation.is_shed:
                return RuleTrace(undecided=FORGOTTEN)
            return RuleTrace(undecided=GONE if generation.until else generation.why or self._requests.failure(_request_of(e)))
        if not e.state & WATCHED:
            return RuleTrace(undecided="the table was not watched while it ran")
        if e.state & REPLACED:
            return RuleTrace(undecided="the rules were replaced while the packet was in them")
        if len(table_traces) != e.state & RECORDS:
            return RuleTrace(undecided="a part of the table's trace was lost")
        try:
            found = self._paths.find(e, generation.snapshot, generation.object, table_traces)
        except MalformedTable as bad:
            return RuleTrace(undecided=f"the rules could not be read ({bad})")
        # Kept rule traces have no ruleset, or they would keep replaced rules in memory.
        generation.ruleset = generation.ruleset or _ruleset(e.netns, [(generation.snapshot, generation.snapshot.table)])
        self.tested = found.tested
        return replace(found.trace, ruleset=generation.ruleset)

    def close(self) -> None:
        """Ends the reader's thread."""
        self._requests.close()

    def rulesets(self) -> list[Ruleset]:
        """The rules in force that have been read, one ruleset per namespace."""
        tables: dict[int, list[tuple[TableSnapshot, Table]]] = {}
        for generation in self._log.in_force():
            snapshot = generation.snapshot
            if snapshot and snapshot.table:
                tables.setdefault(snapshot.request.netns, []).append((snapshot, snapshot.table))
        return [_ruleset(netns, found) for netns, found in sorted(tables.items())]


def _ruleset(netns: int, tables: list[tuple[TableSnapshot, Table]]) -> Ruleset:
    found = {(t.family, t.name, chain): (r, t) for r, t in tables for chain in t.chains}
    policies: dict[ChainKey, str] = {}

    def rules(key: ChainKey) -> tuple[Rule, ...]:
        snapshot, table = found[key]
        return tuple(snapshot.rules[at] for at in table.offsets(key[2]))

    for _, table in tables:
        for hook, at in table.hooks.items():
            policies[table.family, table.name, table.starts[at]] = table.policy(hook)
    generation = " ".join(f"{t.family}/{t.name}@{r.ended}" for r, t in tables)
    return Ruleset("legacy", netns, generation, Lazy(found, rules), policies)


def _request_of(e: Event) -> TableRequest:
    return TableRequest(e.netns, "ip" if e.pf == 2 else "ip6", e.table.split(b"\0")[0].decode(errors="replace"))
