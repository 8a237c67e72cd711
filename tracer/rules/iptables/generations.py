# SPDX-License-Identifier: Apache-2.0
"""Legacy iptables: which rules, of which moment, acted on a packet.

An event names the rules that its packet met by the address of the kernel's blob (tracer/rules/iptables/generation.py). What the
reader read is the blob whose address its own look-ups saw.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TypeVar

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
from tracer.util.lazy import Lazy

K = TypeVar("K")
V = TypeVar("V")
TRACES_KEPT = 4096
TABLES_KEPT = 8192
"""Tables of which it is remembered that they were read, or why not."""
LOOKUPS_KEPT = 65536
"""Look-ups that are remembered while a table is being read."""
THREADS_KEPT = 4096
"""Threads of which the last look-up is remembered."""
MAX_REQUESTS = 4096
"""Tables that may wait to be read; what else is wanted then is asked for when a packet meets it again."""
TRIES = 5
GONE = "the rules of this moment were replaced before they could be read"
FORGOTTEN = "the rules of this moment are not kept any more: they have been replaced too often since"


class TableGenerations:
    """The legacy tables of all namespaces. watched: of (kind, name, revision, family), whether its function is.

    given_up: how much was not kept, or not asked for, because there was too much of it, by what it was.
    """

    def __init__(self, reader: TableReader, watched: Callable[[tuple[str, str, int, str]], bool]) -> None:
        self._reader, self._watched = reader, watched
        self._lives = GenerationLog()
        self._pending: Counter[TableRequest] = Counter()
        self._why: OrderedDict[TableRequest, str] = OrderedDict()
        self._early: list[TableSnapshot] = []
        self._looks: deque[TableLookup] = deque()
        self._unseen_until = 0
        self._last_look: OrderedDict[int, TableLookup] = OrderedDict()
        self._known: OrderedDict[TableRequest, None] = OrderedDict()
        self._traces: OrderedDict[object, RuleTrace] = OrderedDict()
        self.shed = self._lives.shed

    def request(self, request: TableRequest) -> bool:
        """Has a table read, unless that is under way. False when too many wait to be read."""
        self._keep(self._known, request, None, TABLES_KEPT, "tables read")
        return request in self._pending or self._start(request)

    def expect(self, request: TableRequest) -> None:
        """A reading of it will come that was asked for elsewhere."""
        self._pending[request] += 1

    def _start(self, request: TableRequest) -> bool:
        if len(self._pending) >= MAX_REQUESTS:
            self.shed["tables to read"] += 1
            return False
        self._pending[request] += 1
        self._reader.request(request)
        return True

    def add_changes(self, changes: Iterable[TableLookup | TableReplaced]) -> None:
        """Takes what was drained of look-ups and replacements; then what had been read before that drain."""
        for change in changes:
            if isinstance(change, TableLookup):
                self._keep(self._last_look, change.thread, change, THREADS_KEPT, "threads")
                self._looks.append(change)
                if len(self._looks) > LOOKUPS_KEPT:
                    self._unseen_until = self._looks.popleft().time
                    self.shed["look-ups"] += 1
            else:
                self._replace(change)
        late, self._early = self._early, self._reader.read()
        for reading in late:
            self._take(reading)
        if not self._pending:
            self._looks.clear()

    def _replace(self, change: TableReplaced) -> None:
        self._lives.replace(change)
        look = self._last_look.get(change.thread)
        if look:
            wanted = TableRequest(look.netns, look.family, look.table)
            # One may be under way; what is asked for besides will be read as it is then.
            if wanted in self._known and self._pending[wanted] < 2:
                self._start(wanted)

    def _take(self, snapshot: TableSnapshot) -> None:
        wanted = snapshot.request
        if self._pending[wanted] > 1:
            self._pending[wanted] -= 1
        else:
            del self._pending[wanted]
        if not wanted.table:
            return
        looks = [
            x for x in self._looks
            if x.thread == snapshot.thread and snapshot.began <= x.time <= snapshot.ended
            and (x.netns, x.family, x.table) == (wanted.netns, wanted.family, wanted.table)
        ]  # fmt: skip
        objects = {x.object for x in looks}
        self._keep(self._known, wanted, None, TABLES_KEPT, "tables read")
        if not objects or snapshot.began <= self._unseen_until:
            why = snapshot.why or "it was not seen which rules were read"
            self._keep(self._why, wanted, why, TABLES_KEPT, "tables not read")
            return
        life = self._lives.at(looks[-1].object, snapshot.ended)
        if len(objects) == 1 and snapshot.table and (not life.died or life.died > snapshot.ended):
            self._lives.read(life, snapshot)
        elif not life.died:
            life.why = snapshot.why

    def _keep(self, where: OrderedDict[K, V], key: K, value: V, most: int, what: str) -> None:
        where[key] = value
        where.move_to_end(key)
        if len(where) > most:
            where.popitem(last=False)
            self.shed[what] += 1

    def _of(self, e: Event) -> Generation:
        """The life that a TABLE event belongs to."""
        life = self._lives.at(e.object, e.time)
        if life.snapshot and not life.died and life.snapshot.request != _wanted(e):
            life = self._lives.restart(life, e.time)  # its table went with its namespace, which nothing tells
        return life

    def request_for(self, e: Event) -> None:
        """Sees to it that the rules which a TABLE event belongs to are read, if they still can be."""
        life = self._of(e)
        if life.snapshot or life.died or life.asked >= TRIES:
            return
        wanted = _wanted(e)
        if wanted not in self._pending:
            life.asked += self.request(wanted)

    def is_waiting_for(self, e: Event) -> bool:
        """Whether the rules of a TABLE event may yet be read."""
        life = self._of(e)
        self.request_for(e)
        return not life.snapshot and not life.died and _wanted(e) in self._pending

    @property
    def is_reading(self) -> bool:
        """Whether any table is being read."""
        return bool(self._pending)

    def reconstruct(self, e: Event, notes: list[TableTrace]) -> RuleTrace:
        """How the packet of a TABLE event went through the table. notes: the event's records of steps."""
        life = self._of(e)
        if not life.snapshot or not life.snapshot.table:
            if life.forgotten:
                return RuleTrace(undecided=FORGOTTEN)
            return RuleTrace(
                undecided=GONE if life.died else life.why or self._why.get(_wanted(e), "the rules have not been read")
            )
        if not e.state & WATCHED:
            return RuleTrace(undecided="the table was not watched while it ran")
        if e.state & REPLACED:
            return RuleTrace(undecided="the rules were replaced while the packet was in them")
        if len(notes) != e.state & RECORDS:
            return RuleTrace(undecided="a part of what the table did was lost")
        notes = sorted(notes, key=lambda n: n.first)
        steps = tuple(s for n in notes for s in n.steps)
        lost = notes[0].count - len(steps) if notes else 0
        packet = _seen(e, notes[0].mark if notes else e.mark)
        jumps = notes[0].jumps if notes else ()
        verdict = record.verdict(e)
        hotdrop = notes[0].hotdrop if notes else 0
        key = (life.snapshot.ended, life.object, e.hook, verdict, packet, steps, lost, jumps, hotdrop, e.mark)
        found = self._traces.get(key)
        if found is None:
            rules = life.snapshot.rules
            seen = TableObservation(steps, lost, jumps, self._watched, hotdrop, e.mark)
            try:
                found = reconstruct(life.snapshot.table, lambda entry: rules[entry.at], e.hook, verdict, packet, seen)
            except MalformedTable as bad:
                return RuleTrace(undecided=f"the rules could not be read ({bad})")
            self._traces[key] = found
            if len(self._traces) > TRACES_KEPT:
                self._traces.popitem(last=False)
        # Walks that are kept have no ruleset: of rules that were replaced it would be the last to hold them.
        life.ruleset = life.ruleset or _ruleset(e.netns, [(life.snapshot, life.snapshot.table)])
        return replace(found, ruleset=life.ruleset)

    def close(self) -> None:
        """Ends the reader's thread."""
        self._reader.close()

    def rulesets(self) -> list[Ruleset]:
        """The rules in force, as far as they have been read: one ruleset a namespace."""
        tables: dict[int, list[tuple[TableSnapshot, Table]]] = {}
        for life in self._lives.in_force():
            reading = life.snapshot
            if reading and reading.table:
                tables.setdefault(reading.request.netns, []).append((reading, reading.table))
        return [_ruleset(netns, found) for netns, found in sorted(tables.items())]


def _ruleset(netns: int, tables: list[tuple[TableSnapshot, Table]]) -> Ruleset:
    found = {(t.family, t.name, chain): (r, t) for r, t in tables for chain in t.chains}
    policies: dict[ChainKey, str] = {}

    def rules(key: ChainKey) -> tuple[Rule, ...]:
        reading, table = found[key]
        return tuple(reading.rules[at] for at in table.offsets(key[2]))

    for _, table in tables:
        for hook, at in table.hooks.items():
            policies[table.family, table.name, table.starts[at]] = table.policy(hook)
    generation = " ".join(f"{t.family}/{t.name}@{r.ended}" for r, t in tables)
    return Ruleset("legacy", netns, generation, Lazy(found, rules), policies)


def _wanted(e: Event) -> TableRequest:
    return TableRequest(e.netns, "ip" if e.pf == 2 else "ip6", e.table.split(b"\0")[0].decode(errors="replace"))


def _seen(e: Event, mark: int) -> PacketView:
    v4, icmp = e.pf == 2, e.protocol in (1, 58)
    src, dst = (int.from_bytes(a[12:] if v4 else a, "big") for a in (e.src, e.dst))
    arrived, leaves = (int.from_bytes(n.ljust(16, b"\0"), "big") for n in (e.in_name, e.out_name))
    ports: tuple[int, int] = (0, 0) if icmp else (e.sport, e.dport)
    kind = record.icmp(e) or (0, 0)
    fragment = bool(e.flags & Flag.FLAG_FRAGMENT)
    family = "ip" if v4 else "ip6"
    shape = e.state >> SHAPE_AT & SHAPE_MASK
    return PacketView(family, src, dst, arrived, leaves, e.protocol, fragment, *ports, kind, e.tcp_flags, mark, shape)
