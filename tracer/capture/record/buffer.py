# SPDX-License-Identifier: Apache-2.0
"""What a run keeps of itself while it goes on: its turns, the answers it gets, what is read of rules and objects.

The tape only collects. Every second, or when much has come, what it has goes to the writer's thread as one chunk. Nothing is
explained here, and nothing waits for the disk.
"""

from __future__ import annotations

import base64
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from tracer.capture.format import kube_objects, record_layout, rulesets
from tracer.capture.format.codec import plain
from tracer.capture.format.schema import Record
from tracer.connections.conntrack_events import Datagram
from tracer.kube.cni_cache import Sandbox
from tracer.kube.filter_renewal import RenewedFilter
from tracer.kube.store import Change
from tracer.model.loss import Loss
from tracer.model.timeline import TimelineEntry
from tracer.rules.iptables.table_reader import TableSnapshot
from tracer.rules.nftables.watcher import RulesetUpdate as NftChange
from tracer.util.asking import Question
from tracer.util.bounded import Bounded
from tracer.util.visible import visible

CHUNK_SECONDS, CHUNK_BYTES = 1.0, 4 << 20
ANSWERS_KEPT = 1 << 17
"""Questions whose last answer is known; the answer to another one is written once more."""
LONG = 1 << 12
"""A turn with so many slots takes long to explain: what is complete is given away before it begins."""

_NONE = object()
T = TypeVar("T")
Row = tuple[int, str, str, Any]
"""Turn, kind, key, and a function that makes the plain JSON, or the JSON itself."""


@dataclass
class Chunk:
    """What came in some turns. turn: number of the first. turns: (now, slots, last) of each; slots: of all."""

    turn: int
    records: list[Row] = field(default_factory=list)
    turns: list[tuple[int, int, int]] = field(default_factory=list)
    slots: list[npt.NDArray[np.uint8]] = field(default_factory=list)
    bytes: int = 0
    began: float = field(default_factory=time.monotonic)


class RecordBuffer:
    """Collects, and gives chunks to `sink`, once that is set; before, they wait here."""

    def __init__(self) -> None:
        self.number = 0
        self._sink: Callable[[Chunk], None] | None = None
        self._chunk = Chunk(1)
        self._lock = threading.Lock()
        self._asked: dict[Question, int] = {}
        self._answers: Bounded[Question, object] = Bounded(ANSWERS_KEPT)
        self._unkept: set[str] = set()
        self._said: list[str] = []

    def start(self, sink: Callable[[Chunk], None]) -> None:
        """From now on chunks go there; the first is what has come so far."""
        self._sink = sink
        self.flush()

    def flush(self) -> None:
        """Gives away what there is."""
        with self._lock:
            chunk, self._chunk = self._chunk, Chunk(self.number + 1)
        if self._sink and (chunk.records or chunk.turns):
            self._sink(chunk)

    def add_record(self, kind: Record, key: str, body: Any, turn: int | None = None) -> None:
        """A record of this turn, unless another is given. body: plain JSON, or a function that makes it in another thread."""
        with self._lock:
            # A text in SQLite is UTF-8; a name need not be. What is read back stands in the body.
            self._chunk.records.append((self.number if turn is None else turn, kind.value, visible(key), body))

    def add_batch(self, now: int, slots: npt.NDArray[np.uint8], last: bool) -> None:
        """A turn begins with these slots."""
        with self._lock:
            chunk = self._chunk
            full = chunk.bytes >= CHUNK_BYTES or time.monotonic() - chunk.began >= CHUNK_SECONDS or len(slots) >= LONG
        if full and self._sink:
            self.flush()
        with self._lock:
            self.number += 1
            chunk = self._chunk
            chunk.turn = chunk.turn if chunk.turns else self.number
            chunk.turns.append((now, len(slots), int(last)))
            if len(slots):
                chunk.slots.append(slots)
                chunk.bytes += slots.nbytes
        self._asked.clear()
        changes = record_layout.rulesets(slots)
        if len(changes):
            self.add_record(Record.RULESET, "", plain(changes.tobytes()))

    def ask(self, question: Question, ask: Callable[[], T], default: T) -> T:
        """An Asking that asks, and keeps the first answer and each that is not the one before."""
        self._asked[question] = count = self._asked.get(question, 0) + 1
        answer = ask()
        if self._answers.get(question, _NONE) != answer:
            self._answers[question] = answer
            try:
                self.add_record(Record.ANSWER, " ".join(map(str, question)), [plain(question), count, plain(answer)])
            except TypeError as e:
                self._trouble(str(question[0]), e)
        return answer

    def _trouble(self, what: str, e: TypeError) -> None:
        """Something cannot be recorded: that is worth a sentence, and never the run."""
        if what not in self._unkept:
            self._unkept.add(what)
            self._said.append(f"Answers about {what} are not in the capture: {e}.")

    def troubles(self) -> list[str]:
        """What the user should be told since the last call."""
        told, self._said = self._said, []
        return told

    def objects(self, change: Change) -> None:
        """Something was done to the store; it counts from the next turn on, and before the first one at once."""
        what, kind, bodies = change
        kept = kube_objects.all_needed(kind if what != "load" else "", bodies)
        name = kind
        if what in ("apply", "delete"):
            meta = kept[0].get("metadata") or {}
            name = f"{kind} {meta.get('namespace', '')}/{meta.get('name', '')}"
        self.add_record(Record.OBJECTS, name, [what, kind, kept], self.number and self.number + 1)

    def sandboxes(self, asked: int, found: list[Sandbox]) -> None:
        """The CNI result cache was read."""
        self.add_record(Record.SANDBOXES, "", [asked, plain(found)])

    def reading(self, snapshot: TableSnapshot) -> None:
        """A legacy table was read."""
        wanted = snapshot.request
        key = f"{wanted.netns} {wanted.family} {wanted.table}"
        self.add_record(Record.READING, key, lambda: rulesets.of_reading(snapshot))

    def nft(self, change: NftChange) -> None:
        """A namespace's nftables were looked at."""
        self.add_record(Record.NFT, f"{change.inode} {change.seen}", lambda: rulesets.of_change(change))

    def changes(self, entries: list[TimelineEntry]) -> None:
        """Rules or objects were replaced."""
        self.add_record(Record.CHANGE, "", [[step.time, step.text] for step in entries])

    def entries(self, datagrams: list[Datagram]) -> None:
        """Conntrack told something of its entries."""
        with self._lock:
            self._chunk.bytes += sum(len(data) for _, data in datagrams)
        self.add_record(Record.CONNTRACK, "", lambda: [[at, base64.b64encode(data).decode()] for at, data in datagrams])

    def loss(self, loss: Loss) -> None:
        self.add_record(Record.LOSS, loss.probe, plain(loss))

    def renewed(self, renewed: RenewedFilter) -> None:
        """The probes got another filter."""
        to = renewed.filter
        body = [renewed.since, sorted(map(list, renewed.ends)), [str(host) for host in to.hosts], list(to.ports)]
        self.add_record(Record.FILTER, "", body)

    def mark_unexplained(self, chunks: int) -> None:
        """The run explains nothing more: so many parcels of this turn are explained."""
        self.add_record(Record.LEFT, "", chunks)

    def note(self, text: str) -> None:
        self.add_record(Record.NOTE, "", text)

    def end(self, seconds: float) -> None:
        """The run has ended as it should."""
        self.add_record(Record.END, "", [seconds, self.number])
        self.flush()
