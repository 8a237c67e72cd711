# SPDX-License-Identifier: Apache-2.0
"""The turns of a capture, one after another, and what became known with each: the source of a run that is done again."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from tracer.capture.change_events import ReplayedChangeLog, ReplayedConntrackListener
from tracer.capture.cni_journal import ReplayedCniCache
from tracer.capture.format import record_checks, rulesets
from tracer.capture.format.codec import MalformedRecord, rich
from tracer.capture.format.migrations import RecordRow
from tracer.capture.format.schema import ALL, Record
from tracer.capture.replay.answers import ReplayedAnswers, ReplayedRulesetWatcher, ReplayedTableReader
from tracer.capture.replay.capture_reader import BatchChunk, CaptureReader
from tracer.capture.replay.explained_until import DERIVED, UnexplainedTail
from tracer.errors import BadOption
from tracer.events import record
from tracer.kube.cni_cache import Sandbox
from tracer.kube.filter_renewal import RenewedFilter
from tracer.kube.store import ObjectStore
from tracer.model.filter import Filter, parse_host
from tracer.model.loss import Loss
from tracer.model.timeline import TimelineEntry
from tracer.pipeline.source import Batch
from tracer.rules.iptables.generations import TableGenerations

LAST = 1 << 62
"""The number of a turn behind all others."""
OF_PACKETS = ("process", "listener", "netns")
"""Questions that only the explaining of packets asks."""


def _has_all_answers(meta: Mapping[str, Any]) -> bool:
    """Whether a question without an answer was not asked. Before `answers` was written, that was so of `record` alone."""
    if meta.get("answers") == ALL:
        return True
    try:
        options = rich(meta.get("options"))
    except MalformedRecord:
        return True
    return not isinstance(options, dict) or options.get("record_only") is not False


class ReplaySource:
    """A source of recorded turns. asking, reader, watch, sandboxes, store, changes, entries: what answers and tells in them.

    batch: the one that is being replayed. progress: takes the number of events replayed.
    """

    def __init__(self, capture: CaptureReader, progress: Callable[[int], None]) -> None:
        self._capture, self._progress = capture, progress
        self._records = capture.records()
        self._next: RecordRow | None = None
        self._silent = not _has_all_answers(capture.meta)
        self._answers = ReplayedAnswers(silent=self._silent)
        self._explained: int | None = None
        self._answered_in = 0
        self._unasked = UnexplainedTail(capture, self._answers)
        self._number = 0
        self.asking = self._answers.asking
        self._losses: list[Loss] = []
        self._notes: list[str] = []
        self._renewed: list[RenewedFilter] = []
        self._cached: list[tuple[int, list[Sandbox]]] = []
        self.reader, self.watch = ReplayedTableReader(), ReplayedRulesetWatcher()
        self.sandboxes, self.store = ReplayedCniCache(), ObjectStore()
        self.changes, self.entries = ReplayedChangeLog(), ReplayedConntrackListener(self.asking)
        self.batch: BatchChunk | None = None
        self._batches = capture.batches()
        self._first = next(self._batches, None)
        self._advance()
        while self._next and self._next[0] <= 0:
            self._apply(self._next, 0)
            self._advance()

    def expect(self, legacy: TableGenerations) -> None:
        """In a file that goes on from another one, readings come first that nobody in it has asked for."""
        for turn, kind, _, body in self._capture.records():
            if not self._first or turn >= self._first.turn:
                return
            if kind == Record.READING:
                try:
                    legacy.expect(rulesets.reading(body).request)
                except MalformedRecord:
                    continue

    def notes(self) -> list[str]:
        """What the user was told in this turn."""
        told, self._notes = self._notes, []
        return told

    def read(self, last: bool) -> Batch:
        raise NotImplementedError("a replay has its turns in `all`")

    def poll_losses(self) -> None:
        """Losses come with the turns."""

    def set_filter(self, to: Filter) -> None:
        """What was not recorded then cannot be had now."""

    def renewals(self) -> list[RenewedFilter]:
        """New filters of this turn."""
        found, self._renewed = self._renewed, []
        return found

    def mark_unexplained(self, chunks: int) -> None:
        """The capture has it already."""

    def was_unexplained(self) -> bool:
        """Whether packets that were just explained need an answer that the run never got: then it had ended before them."""
        found = self._unasked.proves_end(self._first.turn if self._first else 0)
        if found:
            self._notes.append(DERIVED)
        return found

    def all(self) -> Iterator[Batch]:
        """Every turn, in order. What was known in it answers until the next one is asked for."""
        if self._first:
            yield from self._before(self._first.turn)
            yield from self._turns_of(self._first)
        for batch in self._batches:
            yield from self._turns_of(batch)
        now = self.batch.turns[-1][0] if self.batch and self.batch.turns else 0
        rest = self._begin(LAST, now, record.NOTHING, True)
        if rest.losses or self._notes:
            yield rest

    def _before(self, first: int) -> Iterator[Batch]:
        """What a later file of a run repeats of those before it."""
        while self._next and self._next[0] < first:
            number, parts = self._next[0], []
            while self._next and self._next[0] <= number:
                if self._next[1] == Record.RULESET:
                    parts.append(self._slots(self._next[3]))
                self._apply(self._next, number)
                self._advance()
            slots = np.concatenate(parts) if parts else np.zeros((0, self._capture.layout.slot), np.uint8)
            yield self._turn(0, self._events(slots), False)

    def _events(self, slots: Any) -> Any:
        layout = self._capture.layout
        before = layout.unknown
        events = layout.events(slots)
        self._capture.missed += layout.unknown - before
        return events

    def _slots(self, told: Any) -> Any:
        try:
            raw = base64.b64decode(told["bytes"])
            return np.frombuffer(raw, np.uint8).reshape(-1, self._capture.layout.slot)
        except (KeyError, TypeError, ValueError):
            self._capture.missed += 1
            return np.zeros((0, self._capture.layout.slot), np.uint8)

    def _turns_of(self, batch: BatchChunk) -> Iterator[Batch]:
        self.batch, at = batch, 0
        for place, (now, count, last) in enumerate(batch.turns):
            slots = batch.slots[at : at + count]
            at += count
            yield self._begin(batch.turn + place, now, self._events(slots), last)
        self._progress(batch.events)

    def _begin(self, number: int, now: int, events: Any, last: bool) -> Batch:
        self._answers.settle()
        while self._next and self._next[0] <= number:
            self._apply(self._next, number)
            self._advance()
        if last and self._silent and self._answered_in < number:
            # Nothing was answered for its packets: that may be so because nothing was asked.
            self._answers.ask_strictly()
        return self._turn(now, events, last)

    def _turn(self, now: int, events: Any, last: bool) -> Batch:
        losses, self._losses = self._losses, []
        explained, self._explained = self._explained, None
        cached, self._cached = self._cached, []
        self.sandboxes.turn(cached)
        return Batch(now, events, losses, last, explained)

    def _advance(self) -> None:
        self._next = next(self._records, None)

    def _apply(self, row: RecordRow, number: int) -> None:
        """A record counts from now on. number: of the turn that begins."""
        turn, kind, _, body = row
        self._number = number
        try:
            take = _TAKE.get(kind)
            if take:
                take(self, body, turn == number)
        except (MalformedRecord, KeyError, TypeError, ValueError, AttributeError, IndexError):
            self._capture.missed += 1

    def _answer(self, body: Any, in_turn: bool) -> None:
        question, count, found = record_checks.answer(body)
        self._answers.feed(question, count if in_turn else 1, found)
        if in_turn and question[0] in OF_PACKETS:
            self._answered_in = self._number

    def _objects(self, body: Any, in_turn: bool) -> None:
        what, kind, bodies = body
        if what == "named":
            self.store.node = str(kind)
        elif what == "load":
            self.store.load(bodies)
        elif what == "replace":
            self.store.replace(kind, bodies)
        elif what in ("apply", "delete"):
            for one in bodies:
                (self.store.apply if what == "apply" else self.store.delete)(kind, one)

    def _sandboxes(self, body: Any, in_turn: bool) -> None:
        asked, found = record_checks.sandboxes(body)
        self._cached.append((asked if in_turn else 0, found))

    def _reading(self, body: Any, in_turn: bool) -> None:
        self.reader.coming.append(rulesets.reading(body))

    def _nft(self, body: Any, in_turn: bool) -> None:
        self.watch.learned.append(rulesets.change(body))

    def _loss(self, body: Any, in_turn: bool) -> None:
        self._losses.append(record_checks.loss(body))

    def _gap(self, body: Any, in_turn: bool) -> None:
        self._losses.append(Loss("capture", -1, body[0], body[1]))

    def _filter(self, body: Any, in_turn: bool) -> None:
        since, ends, hosts, ports = body
        try:
            to = Filter(tuple(ports), tuple(map(parse_host, hosts)))
        except BadOption as e:
            raise MalformedRecord("a filter that cannot be") from e
        self._renewed.append(RenewedFilter(since, frozenset((a, port, protocol) for a, port, protocol in ends), to))

    def _left(self, body: Any, in_turn: bool) -> None:
        self._explained = body if in_turn else 0

    def _note(self, body: Any, in_turn: bool) -> None:
        self._notes.append(body)

    def _change(self, body: Any, in_turn: bool) -> None:
        self.changes.coming += [TimelineEntry(at, "change", text) for at, text in body]

    def _conntrack(self, body: Any, in_turn: bool) -> None:
        self.entries.coming += [(at, base64.b64decode(data)) for at, data in body]


_TAKE: dict[str, Callable[[ReplaySource, Any, bool], None]] = {
    Record.ANSWER: ReplaySource._answer,
    Record.OBJECTS: ReplaySource._objects,
    Record.SANDBOXES: ReplaySource._sandboxes,
    Record.READING: ReplaySource._reading,
    Record.NFT: ReplaySource._nft,
    Record.LOSS: ReplaySource._loss,
    Record.GAP: ReplaySource._gap,
    Record.FILTER: ReplaySource._filter,
    Record.LEFT: ReplaySource._left,
    Record.NOTE: ReplaySource._note,
    Record.CHANGE: ReplaySource._change,
    Record.CONNTRACK: ReplaySource._conntrack,
}
