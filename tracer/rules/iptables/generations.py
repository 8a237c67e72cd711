# SPDX-License-Identifier: Apache-2.0
"""Legacy iptables: resolves the rules, of which generation, that acted on a packet.

An event names the rules by the address of the kernel's blob (tracer/rules/iptables/generation.py). The address of a blob that
the reader read is known from the look-ups of the reader's own thread.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace

from tracer.events import record
from tracer.events.record import Event, Flag
from tracer.events.table_trace import RECORDS, REPLACED, SHAPE_AT, SHAPE_MASK, WATCHED, TableLookup, TableReplaced, TableTrace
from tracer.model.rule import ChainKey, Rule, Ruleset, RuleTrace
from tracer.rules.iptables.entry import MalformedTable
from tracer.rules.iptables.generation import Generation, GenerationLog
from tracer.rules.iptables.path_search import TableObservation, reconstruct
from tracer.rules.iptables.table import Table
from tracer.rules.iptables.table_reader import TableReader, TableRequest, TableSnapshot
from tracer.rules.packet_view import PacketView
from tracer.util.bounded_queue import BoundedQueue
from tracer.util.evictions import evictions
from tracer.util.lazy import Lazy
from tracer.util.lru_dict import LruDict

TRACES_KEPT = 4096
"""Most rule traces kept for identical table runs."""
TABLES_KEPT = 8192
"""Most tables kept as read, and most kept with the reason why they were not read."""
LOOKUPS_KEPT = 65536
"""Most look-ups kept while a table is being read."""
THREADS_KEPT = 4096
"""Most threads kept with their last look-up."""
MAX_REQUESTS = 4096
"""Most tables that wait to be read. A table beyond that is requested when a packet meets it again."""
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
    """

    def __init__(self, reader: TableReader, watched: Callable[[tuple[str, str, int, str]], bool]) -> None:
        self._reader, self._watched = reader, watched
        self._log = GenerationLog()
        self._pending: Counter[TableRequest] = Counter()
        self._failures: LruDict[TableRequest, str] = LruDict(TABLES_KEPT, "tables that were not read")
        self._waiting_snapshots: list[TableSnapshot] = []
        self._lookups: BoundedQueue[TableLookup] = BoundedQueue(LOOKUPS_KEPT, "look-ups of tables")
        self._lookups_lost_until = 0
        self._last_lookup: LruDict[int, TableLookup] = LruDict(THREADS_KEPT, "threads that look up tables")
        self._tables_read: LruDict[TableRequest, None] = LruDict(TABLES_KEPT, "tables that were read")
        self._traces: LruDict[object, RuleTrace] = LruDict(TRACES_KEPT, "rule traces of table runs")
        self.shed = self._log.shed

    def request(self, request: TableRequest) -> bool:
        """Requests a table, unless it is already being read. Returns False if too many tables wait to be read."""
        self._tables_read[request] = None
        return request in self._pending or self._start(request)

    def expect(self, request: TableRequest) -> None:
        """Announces a snapshot that was requested elsewhere. Beyond MAX_REQUESTS tables it is not waited for."""
        if request in self._pending or len(self._pending) < MAX_REQUESTS:
            self._pending[request] += 1

    def _start(self, request: TableRequest) -> bool:
        if len(self._pending) >= MAX_REQUESTS:
            self.shed["tables to read"] += 1
            evictions.add("tables to read")
            return False
        self._pending[request] += 1
        self._reader.request(request)
        return True

    def add_changes(self, changes: Iterable[TableLookup | TableReplaced]) -> None:
        """Takes the look-ups and replacements of a drain, then the snapshots that had been read before that drain."""
        for change in changes:
            if isinstance(change, TableLookup):
                self._last_lookup[change.thread] = change
                if len(self._lookups) == LOOKUPS_KEPT:
                    self._lookups_lost_until = self._lookups[0].time
                self._lookups.append(change)
            else:
                self._replace(change)
        snapshots, self._waiting_snapshots = self._waiting_snapshots, self._reader.read()
        for snapshot in snapshots:
            self._take(snapshot)
        if not self._pending:
            self._lookups.clear()

    def _replace(self, change: TableReplaced) -> None:
        self._log.replace(change)
        lookup = self._last_lookup.get(change.thread)
        if lookup:
            request = TableRequest(lookup.netns, lookup.family, lookup.table)
            # One request may be under way; a second one reads the table as it is after this change.
            if request in self._tables_read and self._pending[request] < 2:
                self._start(request)

    def _take(self, snapshot: TableSnapshot) -> None:
        request = snapshot.request
        if self._pending[request] > 1:
            self._pending[request] -= 1
        else:
            del self._pending[request]
        if not request.table:
            return
        lookups = [
            x for x in self._lookups
            if x.thread == snapshot.thread and snapshot.began <= x.time <= snapshot.ended
            and (x.netns, x.family, x.table) == (request.netns, request.family, request.table)
        ]  # fmt: skip
        objects = {x.object for x in lookups}
        self._tables_read[request] = None
        if not objects or snapshot.began <= self._lookups_lost_until:
            why = snapshot.why or "it is not known which generation of the rules was read"
            self._failures[request] = why
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
        if request not in self._pending:
            generation.requests += self.request(request)

    def is_waiting_for(self, e: Event) -> bool:
        """Whether the rules of a TABLE event are being read."""
        generation = self._generation_of(e)
        self.request_for(e)
        return not generation.snapshot and not generation.until and _request_of(e) in self._pending

    @property
    def is_reading(self) -> bool:
        """Whether any table is being read."""
        return bool(self._pending)

    def reconstruct(self, e: Event, table_traces: list[TableTrace]) -> RuleTrace:
        """The rule trace of a TABLE event. `table_traces`: the records of its steps."""
        generation = self._generation_of(e)
        if not generation.snapshot or not generation.snapshot.table:
            if generation.is_shed:
                return RuleTrace(undecided=FORGOTTEN)
            return RuleTrace(
                undecided=GONE
                if generation.until
                else generation.why or self._failures.get(_request_of(e), "the rules have not been read")
            )
        if not e.state & WATCHED:
            return RuleTrace(undecided="the table was not watched while it ran")
        if e.state & REPLACED:
            return RuleTrace(undecided="the rules were replaced while the packet was in them")
        if len(table_traces) != e.state & RECORDS:
            return RuleTrace(undecided="a part of the table's trace was lost")
        table_traces = sorted(table_traces, key=lambda n: n.first)
        steps = tuple(s for n in table_traces for s in n.steps)
        lost = table_traces[0].count - len(steps) if table_traces else 0
        packet = _packet_view(e, table_traces[0].mark if table_traces else e.mark)
        jumps = table_traces[0].jumps if table_traces else ()
        verdict = record.verdict(e)
        hotdrop = table_traces[0].hotdrop if table_traces else 0
        key = (generation.snapshot.ended, generation.object, e.hook, verdict, packet, steps, lost, jumps, hotdrop, e.mark)
        found = self._traces.get(key)
        if found is None:
            rules = generation.snapshot.rules
            observation = TableObservation(steps, lost, jumps, self._watched, hotdrop, e.mark)
            try:
                found = reconstruct(
                    generation.snapshot.table, lambda entry: rules[entry.at], e.hook, verdict, packet, observation
                )
            except MalformedTable as bad:
                return RuleTrace(undecided=f"the rules could not be read ({bad})")
            self._traces[key] = found
        # Kept rule traces have no ruleset, or they would keep replaced rules in memory.
        generation.ruleset = generation.ruleset or _ruleset(e.netns, [(generation.snapshot, generation.snapshot.table)])
        return replace(found, ruleset=generation.ruleset)

    def close(self) -> None:
        """Ends the reader's thread."""
        self._reader.close()

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


def _packet_view(e: Event, mark: int) -> PacketView:
    v4, icmp = e.pf == 2, e.protocol in (1, 58)
    src, dst = (int.from_bytes(a[12:] if v4 else a, "big") for a in (e.src, e.dst))
    arrived, leaves = (int.from_bytes(n.ljust(16, b"\0"), "big") for n in (e.in_name, e.out_name))
    ports: tuple[int, int] = (0, 0) if icmp else (e.sport, e.dport)
    kind = record.icmp(e) or (0, 0)
    fragment = bool(e.flags & Flag.FLAG_FRAGMENT)
    family = "ip" if v4 else "ip6"
    shape = e.state >> SHAPE_AT & SHAPE_MASK
    return PacketView(family, src, dst, arrived, leaves, e.protocol, fragment, *ports, kind, e.tcp_flags, mark, shape)
