"""Legacy iptables: which rules, of which moment, acted on a packet.

A table's rules are one blob in the kernel; every change puts a new one in its place. An event names the blob it belongs to by
its address, which may be used again later. So each blob has a life: from the replacement that put it there to the one that took
it away; events of a packet that used it come before the latter. What the reader read is the blob whose address its own
look-ups saw.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from tracer import record
from tracer.lazy import Lazy
from tracer.record import Event, Flag
from tracer.rules.entry import BadBlob
from tracer.rules.matches import Seen
from tracer.rules.model import ChainKey, Rule, Ruleset, Walk
from tracer.rules.reader import Reader, Reading, Wanted
from tracer.rules.steps import RECORDS, REPLACED, SHAPE_AT, SHAPE_MASK, WATCHED, Looked, Noted, Replaced
from tracer.rules.table import Table
from tracer.rules.walk import Observed, walk

LIVES_KEPT = 16
"""Lives of one address that are remembered."""
WALKS_KEPT = 4096
TRIES = 5
GONE = "the rules of this moment were replaced before they could be read"


@dataclass
class Life:
    """Of one blob. died: ns, CLOCK_MONOTONIC, 0 = it is in force. why: it could not be read. asked: how often."""

    object: int
    died: int = 0
    reading: Reading | None = None
    ruleset: Ruleset | None = None
    why: str = ""
    asked: int = 0


class Legacy:
    """The legacy tables of all namespaces. watched: of (kind, name, revision, family), whether its function is."""

    def __init__(self, reader: Reader, watched: Callable[[tuple[str, str, int, str]], bool]) -> None:
        self._reader, self._watched = reader, watched
        self._lives: dict[int, list[Life]] = {}
        self._pending: Counter[Wanted] = Counter()
        self._why: dict[Wanted, str] = {}
        self._early: list[Reading] = []
        self._looks: list[Looked] = []
        self._last_look: dict[int, Looked] = {}
        self._known: set[Wanted] = set()
        self._walks: OrderedDict[object, Walk] = OrderedDict()

    def ask(self, wanted: Wanted) -> None:
        """Has a table read, unless that is under way."""
        self._known.add(wanted)
        if not self._pending[wanted]:
            self._start(wanted)

    def expect(self, wanted: Wanted) -> None:
        """A reading of it will come that was asked for elsewhere."""
        self._pending[wanted] += 1

    def _start(self, wanted: Wanted) -> None:
        self._pending[wanted] += 1
        self._reader.ask(wanted)

    def note(self, changes: Iterable[Looked | Replaced]) -> None:
        """Takes what was drained of look-ups and replacements; then what had been read before that drain."""
        for change in changes:
            if isinstance(change, Looked):
                self._last_look[change.thread] = change
                self._looks.append(change)
            else:
                self._replace(change)
        late, self._early = self._early, self._reader.done()
        for reading in late:
            self._take(reading)
        if not any(self._pending.values()):
            self._looks.clear()

    def _replace(self, change: Replaced) -> None:
        self._alive(change.before).died = change.time
        self._alive(change.object)
        look = self._last_look.get(change.thread)
        if look:
            wanted = Wanted(look.netns, look.family, look.table)
            # One may be under way; what is asked for besides will be read as it is then.
            if wanted in self._known and self._pending[wanted] < 2:
                self._start(wanted)

    def _alive(self, address: int) -> Life:
        lives = self._lives.setdefault(address, [])
        if not lives or lives[-1].died:
            lives.append(Life(address))
            del lives[:-LIVES_KEPT]
        return lives[-1]

    def _take(self, reading: Reading) -> None:
        wanted = reading.wanted
        self._pending[wanted] -= self._pending[wanted] > 0
        if not wanted.table:
            return
        looks = [
            x for x in self._looks
            if x.thread == reading.thread and reading.began <= x.time <= reading.ended
            and (x.netns, x.family, x.table) == (wanted.netns, wanted.family, wanted.table)
        ]  # fmt: skip
        objects = {x.object for x in looks}
        self._known.add(wanted)
        if not objects:
            self._why[wanted] = reading.why or "it was not seen which rules were read"
            return
        life = self._of(looks[-1].object, reading.ended)
        if len(objects) == 1 and reading.table and (not life.died or life.died > reading.ended):
            life.reading, life.ruleset, life.why = reading, None, ""
        elif not life.died:
            life.why = reading.why

    def _of(self, address: int, time: int) -> Life:
        """The life of an address at a time: the first not over then; a blob is in use a moment before that is told."""
        for life in self._lives.get(address, ()):
            if not life.died or life.died > time:
                return life
        return self._alive(address)

    def want(self, e: Event) -> None:
        """Sees to it that the rules which a TABLE event belongs to are read, if they still can be."""
        life = self._of(e.object, e.time)
        if life.reading or life.died or life.asked >= TRIES:
            return
        wanted = _wanted(e)
        if not self._pending[wanted]:
            life.asked += 1
            self.ask(wanted)

    def waits(self, e: Event) -> bool:
        """Whether the rules of a TABLE event may yet be read."""
        life = self._of(e.object, e.time)
        self.want(e)
        return not life.reading and not life.died and self._pending[_wanted(e)] > 0

    @property
    def reading(self) -> bool:
        """Whether any table is being read."""
        return any(self._pending.values())

    def walk(self, e: Event, notes: list[Noted]) -> Walk:
        """How the packet of a TABLE event went through the table. notes: the event's records of steps."""
        life = self._of(e.object, e.time)
        if not life.reading or not life.reading.table:
            return Walk(undecided=GONE if life.died else life.why or self._why.get(_wanted(e), "the rules have not been read"))
        if not e.state & WATCHED:
            return Walk(undecided="the table was not watched while it ran")
        if e.state & REPLACED:
            return Walk(undecided="the rules were replaced while the packet was in them")
        if len(notes) != e.state & RECORDS:
            return Walk(undecided="a part of what the table did was lost")
        notes = sorted(notes, key=lambda n: n.first)
        steps = tuple(s for n in notes for s in n.steps)
        lost = notes[0].count - len(steps) if notes else 0
        packet = _seen(e, notes[0].mark if notes else e.mark)
        jumps = notes[0].jumps if notes else ()
        verdict = record.verdict(e)
        hotdrop = notes[0].hotdrop if notes else 0
        key = (life.reading.ended, life.object, e.hook, verdict, packet, steps, lost, jumps, hotdrop, e.mark)
        found = self._walks.get(key)
        if found is None:
            rules = life.reading.rules
            seen = Observed(steps, lost, jumps, self._watched, hotdrop, e.mark)
            try:
                found = walk(life.reading.table, lambda entry: rules[entry.at], e.hook, verdict, packet, seen)
            except BadBlob as bad:
                return Walk(undecided=f"the rules could not be read ({bad})")
            life.ruleset = life.ruleset or _ruleset(e.netns, [(life.reading, life.reading.table)])
            found = replace(found, ruleset=life.ruleset)
            self._walks[key] = found
            if len(self._walks) > WALKS_KEPT:
                self._walks.popitem(last=False)
        return found

    def close(self) -> None:
        """Ends the reader's thread."""
        self._reader.close()

    def rulesets(self) -> list[Ruleset]:
        """The rules in force, as far as they have been read: one ruleset a namespace."""
        tables: dict[int, list[tuple[Reading, Table]]] = {}
        for lives in self._lives.values():
            reading = lives[-1].reading
            if reading and reading.table and not lives[-1].died:
                tables.setdefault(reading.wanted.netns, []).append((reading, reading.table))
        return [_ruleset(netns, found) for netns, found in sorted(tables.items())]


def _ruleset(netns: int, tables: list[tuple[Reading, Table]]) -> Ruleset:
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


def _wanted(e: Event) -> Wanted:
    return Wanted(e.netns, "ip" if e.pf == 2 else "ip6", e.table.split(b"\0")[0].decode(errors="replace"))


def _seen(e: Event, mark: int) -> Seen:
    v4, icmp = e.pf == 2, e.protocol in (1, 58)
    src, dst = (int.from_bytes(a[12:] if v4 else a, "big") for a in (e.src, e.dst))
    arrived, leaves = (int.from_bytes(n.ljust(16, b"\0"), "big") for n in (e.in_name, e.out_name))
    ports: tuple[int, int] = (0, 0) if icmp else (e.sport, e.dport)
    kind = record.icmp(e) or (0, 0)
    fragment = bool(e.flags & Flag.FLAG_FRAGMENT)
    family = "ip" if v4 else "ip6"
    shape = e.state >> SHAPE_AT & SHAPE_MASK
    return Seen(family, src, dst, arrived, leaves, e.protocol, fragment, *ports, kind, e.tcp_flags, mark, shape)
