# SPDX-License-Identifier: Apache-2.0
"""The source of a replay: the batches of a capture in order, with the records that are valid in each."""

from __future__ import annotations

import base64
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tracer.capture.change_events import ReplayedChangeLog, ReplayedConntrackListener
from tracer.capture.cni_journal import ReplayedCniCache
from tracer.capture.format import record_checks, rulesets
from tracer.capture.format.codec import MalformedRecord, from_json
from tracer.capture.format.migrations import RecordRow
from tracer.capture.format.schema import ALL_ANSWERS, Record
from tracer.capture.replay.answers import ReplayedAnswers, ReplayedRulesetWatcher, ReplayedTableReader
from tracer.capture.replay.capture_reader import BatchChunk, CaptureReader
from tracer.capture.replay.unexplained_tail import DERIVED, UnexplainedTail
from tracer.errors import BadOption
from tracer.events import record
from tracer.events.record import EventArray, Slots
from tracer.kube.cni_cache import Sandbox
from tracer.kube.filter_renewal import RenewedFilter
from tracer.kube.selected_ends import DIRECTED, DirectedEnds, End
from tracer.kube.store import ObjectStore
from tracer.model.filter import Filter, parse_host
from tracer.model.loss import Loss
from tracer.model.timeline import TimelineEntry
from tracer.pipeline.source import Batch, RunProgress
from tracer.rules.iptables.generations import TableGenerations

LAST_BATCH = 1 << 62
"""A batch number greater than all others."""
MAX_LOSS_KINDS = 1000
"""Maximum number of pairs of a probe and a reason; a recording has about a hundred. Other losses are counted together."""
PACKET_QUESTIONS = ("process", "listener", "netns")
"""Questions that are asked only while packets are explained."""


def _has_all_answers(meta: Mapping[str, Any]) -> bool:
    """Whether a question without an answer was not asked. In older captures, without `answers`, only `record` guarantees it."""
    if meta.get("answers") == ALL_ANSWERS:
        return True
    try:
        options = from_json(meta.get("options"))
    except MalformedRecord:
        return True
    return not isinstance(options, dict) or options.get("record_only") is not False


class ReplaySource:
    """Gives the recorded batches, and the answers, rules, objects and events that are valid in them.

    Args:
        capture: the capture.
        progress: called with the number of events of each replayed chunk.

    Attributes:
        journal: gives the recorded answers.
        version: gives a number that changes when answers may change.
        reader: readings of legacy tables.
        watch: readings of nftables rules.
        sandboxes: the CNI result cache.
        store: Kubernetes objects.
        changes: replaced rules and objects.
        entries: conntrack events.
        chunk: the chunk that is being replayed.
        seconds: duration of the recorded run, or the time from its first batch to its last; valid after the last batch.
    """

    explains_backlog = True

    def __init__(self, capture: CaptureReader, progress: Callable[[int], None]) -> None:
        self._capture, self._progress = capture, progress
        self._records = capture.records()
        self._next: RecordRow | None = None
        self._omits_defaults = not _has_all_answers(capture.meta)
        self._answers = ReplayedAnswers(omits_defaults=self._omits_defaults)
        self.seconds = 0.0
        self._explained: int | None = None
        self._answered_in = 0
        self._tail = UnexplainedTail(capture, self._answers)
        self._batch_number = 0
        self.journal, self.version = self._answers.journal, self._answers.version
        self._losses: list[Loss] = []
        self._loss_kinds: set[tuple[str, str]] = set()
        self._notes: list[str] = []
        self._renewed: list[RenewedFilter] = []
        self._sandbox_readings: list[tuple[int, list[Sandbox]]] = []
        self.reader, self.watch = ReplayedTableReader(), ReplayedRulesetWatcher()
        self.sandboxes, self.store = ReplayedCniCache(), ObjectStore()
        self.changes, self.entries = ReplayedChangeLog(), ReplayedConntrackListener(self.journal)
        self.chunk: BatchChunk | None = None
        self._chunks = capture.chunks()
        self._first = next(self._chunks, None)
        self._advance()
        while self._next and self._next[0] <= 0:
            self._apply(self._next, 0)
            self._advance()

    def expect_readings(self, legacy: TableGenerations) -> None:
        """Announces the readings at the beginning of a further file of a run: no packet of this file has requested them."""
        for batch_number, kind, _, body in self._capture.records():
            if not self._first or batch_number >= self._first.first_batch:
                return
            if kind == Record.READING:
                try:
                    legacy.expect(rulesets.decode_reading(body).request)
                except MalformedRecord:
                    continue

    def notes(self) -> list[str]:
        """The recorded messages of this batch."""
        notes, self._notes = self._notes, []
        return notes

    def poll_losses(self) -> None:
        """Does nothing: losses come with the batches."""

    def set_filter(self, new_filter: Filter) -> None:
        """Does nothing: only recorded events are available."""

    def renewals(self) -> list[RenewedFilter]:
        """New filters of this batch."""
        found, self._renewed = self._renewed, []
        return found

    def mark_unexplained(self, chunks: int) -> None:
        """Does nothing: the capture has this information."""

    def was_unexplained(self) -> bool:
        """Whether the last explained packets need an answer that the run never requested: then it had ended before them."""
        found = self._tail.proves_end(self._first.first_batch if self._first else 0)
        if found:
            self._notes.append(DERIVED)
        return found

    def batches(self, run: RunProgress) -> Generator[Batch, None, None]:
        """Yields the batches in order, the last one with `last` set. The answers of a batch are valid until the next one."""
        began, batch = 0, Batch(0, record.NOTHING)
        for batch in self._recorded():
            began = began or batch.now
            yield batch
            if run.stop.is_requested or (run.limits.stops_at_count and run.is_limit_reached):
                break
        if not batch.last:
            yield Batch(batch.now, record.NOTHING, last=True)
        ended = self._capture.ended()
        self.seconds = ended[0] if ended else (batch.now - began) / 1e9

    def _recorded(self) -> Iterator[Batch]:
        if self._first:
            yield from self._repeated_batches(self._first.first_batch)
            yield from self._batches_of(self._first)
        for chunk in self._chunks:
            yield from self._batches_of(chunk)
        now = self.chunk.batches[-1][0] if self.chunk and self.chunk.batches else 0
        rest = self._begin_batch(LAST_BATCH, now, record.NOTHING, True)
        if rest.losses or self._notes:
            yield rest

    def _repeated_batches(self, first: int) -> Iterator[Batch]:
        """Yields batches with the records that a further file of a run repeats from earlier files."""
        while self._next and self._next[0] < first:
            number, parts = self._next[0], []
            while self._next and self._next[0] <= number:
                if self._next[1] == Record.RULESET:
                    parts.append(self._slots(self._next[3]))
                self._apply(self._next, number)
                self._advance()
            slots = np.concatenate(parts) if parts else np.zeros((0, self._capture.layout.slot), np.uint8)
            (events,) = self._events(slots, [len(slots)])
            yield self._make_batch(0, events, False)

    def _events(self, slots: Slots, counts: Sequence[int]) -> list[EventArray]:
        """The events of batches. slots: of all of them; counts: the number of slots of each batch."""
        layout = self._capture.layout
        before = layout.unknown
        events = layout.batches(slots, counts)
        self._capture.missed += layout.unknown - before
        return events

    def _slots(self, body: Any) -> Any:
        try:
            raw = base64.b64decode(body["bytes"])
            return np.frombuffer(raw, np.uint8).reshape(-1, self._capture.layout.slot)
        except (KeyError, TypeError, ValueError):
            self._capture.missed += 1
            return np.zeros((0, self._capture.layout.slot), np.uint8)

    def _batches_of(self, batch: BatchChunk) -> Iterator[Batch]:
        self.chunk = batch
        found = self._events(batch.slots, [count for _, count, _ in batch.batches])
        for number, ((now, _, last), events) in enumerate(zip(batch.batches, found, strict=True), batch.first_batch):
            yield self._begin_batch(number, now, events, last)
        self._progress(batch.events)

    def _begin_batch(self, number: int, now: int, events: Any, last: bool) -> Batch:
        self._answers.end_batch()
        while self._next and self._next[0] <= number:
            self._apply(self._next, number)
            self._advance()
        if last and self._omits_defaults and self._answered_in < number:
            # There is no answer for its packets: perhaps no question was asked.
            self._answers.require_answers()
        return self._make_batch(now, events, last)

    def _make_batch(self, now: int, events: Any, last: bool) -> Batch:
        losses, self._losses = self._losses, []
        explained, self._explained = self._explained, None
        readings, self._sandbox_readings = self._sandbox_readings, []
        self.sandboxes.begin_batch(readings)
        return Batch(now, events, losses, last, explained, self._answers.is_uniform)

    def _advance(self) -> None:
        self._next = next(self._records, None)

    def _apply(self, row: RecordRow, number: int) -> None:
        """Applies a record. number: number of the batch that begins."""
        batch_number, kind, _, body = row
        self._batch_number = number
        try:
            take = _HANDLERS.get(kind)
            if take:
                take(self, body, batch_number == number)
        except (MalformedRecord, KeyError, TypeError, ValueError, AttributeError, IndexError):
            self._capture.missed += 1

    def _answer(self, body: Any, in_batch: bool) -> None:
        question, count, found = record_checks.answer(body)
        self._answers.feed(question, count if in_batch else 1, found)
        if in_batch and question[0] in PACKET_QUESTIONS:
            self._answered_in = self._batch_number

    def _objects(self, body: Any, in_batch: bool) -> None:
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

    def _sandboxes(self, body: Any, in_batch: bool) -> None:
        lookups, found = record_checks.sandboxes(body)
        self._sandbox_readings.append((lookups if in_batch else 0, found))

    def _reading(self, body: Any, in_batch: bool) -> None:
        self.reader.pending.append(rulesets.decode_reading(body))

    def _nft(self, body: Any, in_batch: bool) -> None:
        self.watch.pending.append(rulesets.decode_update(body))

    def _loss(self, body: Any, in_batch: bool) -> None:
        loss = record_checks.loss(body)
        if len(self._loss_kinds) < MAX_LOSS_KINDS:
            self._loss_kinds.add((loss.probe, loss.why))
        elif (loss.probe, loss.why) not in self._loss_kinds:
            loss = replace(loss, probe="any", why="there are too many kinds of losses in the capture")
        self._losses.append(loss)

    def _gap(self, body: Any, in_batch: bool) -> None:
        self._losses.append(Loss("capture", -1, body[0], body[1]))

    def _filter(self, body: Any, in_batch: bool) -> None:
        since, ends, hosts, ports, *directions = body
        if any(name not in DIRECTED for name, _, _ in directions):
            raise MalformedRecord("an invalid filter")
        try:
            networks = {name: tuple(map(parse_host, of)) for name, _, of in directions}
            sources, destinations = (networks.get(name, ()) for name in DIRECTED)
            new_filter = Filter(tuple(ports), tuple(map(parse_host, hosts)), sources=sources, destinations=destinations)
        except BadOption as e:
            raise MalformedRecord("an invalid filter") from e
        directed = DirectedEnds(**{name: _ends(wanted) for name, wanted, _ in directions})
        self._renewed.append(RenewedFilter(since, _ends(ends), new_filter, directed))

    def _left(self, body: Any, in_batch: bool) -> None:
        self._explained = body if in_batch else 0

    def _note(self, body: Any, in_batch: bool) -> None:
        self._notes.append(body)

    def _change(self, body: Any, in_batch: bool) -> None:
        self.changes.pending += [TimelineEntry(at, "change", text) for at, text in body]

    def _conntrack(self, body: Any, in_batch: bool) -> None:
        self.entries.pending += [(at, base64.b64decode(data)) for at, data in body]


_HANDLERS: dict[str, Callable[[ReplaySource, Any, bool], None]] = {
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


def _ends(ends: list[list[Any]]) -> frozenset[End]:
    return frozenset((address, port, protocol) for address, port, protocol in ends)
