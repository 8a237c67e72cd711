# SPDX-License-Identifier: Apache-2.0
"""Collects the inputs of a run while it goes on: batches, answers, readings of rules, objects.

Every CHUNK_SECONDS, or after CHUNK_BYTES, the buffer gives its contents to the writer's thread as one chunk. It interprets
nothing, and never waits for the disk.
"""

from __future__ import annotations

import base64
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tracer.capture.format import kube_objects, record_layout, rulesets
from tracer.capture.format.codec import to_json
from tracer.capture.format.schema import Record
from tracer.connections.conntrack_events import Datagram
from tracer.events.record import Slots
from tracer.kube.cni_cache import Sandbox
from tracer.kube.filter_renewal import RenewedFilter
from tracer.kube.selected_ends import DIRECTED, End
from tracer.kube.store import Change
from tracer.model.loss import Loss
from tracer.model.timeline import TimelineEntry
from tracer.rules.iptables.table_reader import TableSnapshot
from tracer.rules.nftables.watcher import RulesetUpdate as NftChange
from tracer.util.escape import escaped
from tracer.util.lru_dict import LruDict
from tracer.util.questions import Answer, Known, Question

CHUNK_SECONDS, CHUNK_BYTES = 1.0, 4 << 20
"""Age and length of slots from which a chunk goes to the writer, seconds and bytes."""
ANSWERS_KEPT = 1 << 17
"""Number of questions with a known last answer. The answer to any other question is written again."""
NFT_OBJECT_BYTES = 400
"""Memory of a rule or map element of nftables, bytes."""
LONG_BATCH_SLOTS = 1 << 12
"""Number of slots from which a batch takes long to explain: the chunk before it goes to the writer first."""

_NONE = object()
T = TypeVar("T")
Row = tuple[int, str, str, Any]
"""Batch number, kind, key, and the plain JSON or a function that makes it."""


@dataclass
class Chunk:
    """The inputs of some consecutive batches.

    Attributes:
        first_batch: number of the first batch.
        records: records of all batches, oldest first.
        batches: (now, number of slots, last) of each batch.
        slots: slots of all batches, one array (number of slots, slot length) per batch.
        bytes: length of the slots and of conntrack's messages.
        began: time of creation, seconds, CLOCK_MONOTONIC.
        rule_bytes: memory of the readings of rules among the records, bytes.
    """

    first_batch: int
    records: list[Row] = field(default_factory=list)
    batches: list[tuple[int, int, int]] = field(default_factory=list)
    slots: list[Slots] = field(default_factory=list)
    bytes: int = 0
    began: float = field(default_factory=time.monotonic)
    rule_bytes: int = 0


class RecordBuffer:
    """Collects records and batches, and gives them to `sink` as chunks. Without a sink they are kept here.

    Attributes:
        batch_number: number of the current batch; 0 = before the first.
    """

    def __init__(self) -> None:
        self.batch_number = 0
        self._sink: Callable[[Chunk], None] | None = None
        self._chunk = Chunk(1)
        self._lock = threading.Lock()
        self._counts: dict[Question, int] = {}
        self._answers: LruDict[Question, object] = LruDict(ANSWERS_KEPT, "answers in the record buffer")
        self._unrecorded: set[str] = set()
        self._warnings: list[str] = []

    def start(self, sink: Callable[[Chunk], None]) -> None:
        """Sets the sink. Its first chunk has everything collected so far."""
        self._sink = sink
        self.flush()

    def flush(self) -> None:
        """Gives everything collected so far to the sink."""
        with self._lock:
            chunk, self._chunk = self._chunk, Chunk(self.batch_number + 1)
        if self._sink and (chunk.records or chunk.batches):
            self._sink(chunk)

    def add_record(self, kind: Record, key: str, body: Any, batch_number: int | None = None) -> None:
        """Adds a record.

        Args:
            kind: kind of the record.
            key: identifies the record within its kind.
            body: plain JSON, or a function that makes it in another thread.
            batch_number: the batch in which it is valid; None = the current one.
        """
        with self._lock:
            number = self.batch_number if batch_number is None else batch_number
            # A text in SQLite is UTF-8, a name may be other bytes. Only the body is read back.
            self._chunk.records.append((number, kind.value, escaped(key), body))

    def add_batch(self, now: int, slots: Slots, last: bool) -> None:
        """Begins a batch. now: ns, CLOCK_MONOTONIC. slots: (number of slots, slot length). last: no batch follows."""
        with self._lock:
            chunk = self._chunk
            is_full = chunk.bytes >= CHUNK_BYTES or time.monotonic() - chunk.began >= CHUNK_SECONDS
            is_full = is_full or len(slots) >= LONG_BATCH_SLOTS
        if is_full and self._sink:
            self.flush()
        with self._lock:
            self.batch_number += 1
            chunk = self._chunk
            chunk.first_batch = chunk.first_batch if chunk.batches else self.batch_number
            chunk.batches.append((now, len(slots), int(last)))
            if len(slots):
                chunk.slots.append(slots)
                chunk.bytes += slots.nbytes
        self._counts.clear()
        changes = record_layout.ruleset_slots(slots)
        if len(changes):
            self.add_record(Record.RULESET, "", to_json(changes.tobytes()))

    def journal(self, question: Question, ask: Callable[[], T], default: T, requests: int = 1) -> Answer[T]:
        """A Journal that asks the machine, and records the first answer and each answer that differs from the previous one."""
        count = self._counts.get(question, 0) + 1
        self._counts[question] = count + requests - 1
        answer = ask()
        if self._answers.get(question, _NONE) != answer:
            self._answers[question] = answer
            try:
                self.add_record(Record.ANSWER, " ".join(map(str, question)), [to_json(question), count, to_json(answer)])
            except TypeError as e:
                self._warn(str(question[0]), e)
        return Known(answer)

    def _warn(self, what: str, e: TypeError) -> None:
        """Adds a warning about an answer that cannot be recorded. The run goes on."""
        if what not in self._unrecorded:
            self._unrecorded.add(what)
            self._warnings.append(f"Answers about {what} are not in the capture: {e}.")

    def warnings(self) -> list[str]:
        """Messages for the user since the previous call."""
        warnings, self._warnings = self._warnings, []
        return warnings

    def add_objects(self, change: Change) -> None:
        """Adds a change of the object store. It is valid from the next batch on; before the first batch, at once."""
        what, kind, bodies = change
        kept = kube_objects.reduce_objects(kind if what != "load" else "", bodies)
        name = kind
        if what in ("apply", "delete"):
            meta = kept[0].get("metadata") or {}
            name = f"{kind} {meta.get('namespace', '')}/{meta.get('name', '')}"
        self.add_record(Record.OBJECTS, name, [what, kind, kept], self.batch_number and self.batch_number + 1)

    def add_sandboxes(self, lookups: int, found: list[Sandbox]) -> None:
        """Adds a reading of the CNI result cache. lookups: number of lookups before it in this batch."""
        self.add_record(Record.SANDBOXES, "", [lookups, to_json(found)])

    def add_reading(self, snapshot: TableSnapshot) -> None:
        """Adds a reading of a legacy table."""
        request = snapshot.request
        key = f"{request.netns} {request.family} {request.table}"
        with self._lock:
            self._chunk.rule_bytes += len(snapshot.blob) + len(snapshot.text or "")
        self.add_record(Record.READING, key, lambda: rulesets.encode_reading(snapshot))

    def add_nft(self, change: NftChange) -> None:
        """Adds a reading of a namespace's nftables rules."""
        with self._lock:
            self._chunk.rule_bytes += NFT_OBJECT_BYTES * (change.snapshot.objects if change.snapshot else 0)
        self.add_record(Record.NFT, f"{change.inode} {change.seen}", lambda: rulesets.encode_update(change))

    def add_changes(self, entries: list[TimelineEntry]) -> None:
        """Adds replacements of rules or objects."""
        self.add_record(Record.CHANGE, "", [[entry.time, entry.text] for entry in entries])

    def add_entries(self, datagrams: list[Datagram]) -> None:
        """Adds conntrack's messages."""
        with self._lock:
            self._chunk.bytes += sum(len(data) for _, data in datagrams)
        self.add_record(Record.CONNTRACK, "", lambda: [[at, base64.b64encode(data).decode()] for at, data in datagrams])

    def add_loss(self, loss: Loss) -> None:
        self.add_record(Record.LOSS, loss.probe, to_json(loss))

    def add_filter(self, renewed: RenewedFilter) -> None:
        """Adds a new filter of the probes."""
        ends, hosts = sorted(map(list, renewed.ends)), [str(host) for host in renewed.filter.hosts]
        body = [renewed.since, ends, hosts, list(renewed.filter.ports)]
        for name in DIRECTED:
            wanted: frozenset[End] | None = getattr(renewed.directed, name)
            if wanted is not None:
                body.append([name, sorted(map(list, wanted)), [str(host) for host in getattr(renewed.filter, name)]])
        self.add_record(Record.FILTER, "", body)

    def mark_unexplained(self, chunks: int) -> None:
        """Adds the end of explaining. chunks: number of explained chunks of packets of this batch."""
        self.add_record(Record.LEFT, "", chunks)

    def add_note(self, text: str) -> None:
        self.add_record(Record.NOTE, "", text)

    def end(self, seconds: float) -> None:
        """Adds the normal end of the run. seconds: its duration."""
        self.add_record(Record.END, "", [seconds, self.batch_number])
        self.flush()
