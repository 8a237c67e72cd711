# SPDX-License-Identifier: Apache-2.0
"""A source that is live and on tape: the running probes, with each turn kept as it is taken."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tracer import __version__
from tracer.capture.change_events import RecordedChangeLog, RecordedConntrackListener
from tracer.capture.cni_journal import RecordedCniCache
from tracer.capture.format import record_layout
from tracer.capture.format.codec import plain
from tracer.capture.format.schema import ALL
from tracer.capture.journal import (
    JournaledHostReader,
    JournaledNamespaceInspector,
    JournaledNamespaces,
    JournaledProcesses,
    asked_function,
)
from tracer.capture.record.buffer import RecordBuffer
from tracer.capture.record.capture_files import CaptureFiles, RotationLimits
from tracer.capture.record.writer import CaptureWriter
from tracer.capture.redact.records import RecordRedactor
from tracer.connections.conntrack_events import EntryEvents
from tracer.events import record
from tracer.kernel.session import Session
from tracer.kube.catalog import ClusterView
from tracer.kube.filter_renewal import RenewedFilter
from tracer.kube.owner_resolver import OwnerResolver
from tracer.kube.store import ObjectStore
from tracer.model.check import CheckResult
from tracer.node import addresses
from tracer.node.namespaces import Namespaces
from tracer.node.processes import Processes
from tracer.pipeline.environment import Environment
from tracer.pipeline.live_source import LiveSource
from tracer.pipeline.source import Batch
from tracer.rules.iptables.table_reader import TableReader, TableSnapshot
from tracer.rules.nftables.snapshot_cache import UpdateSource
from tracer.rules.nftables.watcher import RulesetUpdate
from tracer.util.timezone import local_zone
from tracer.util.worker import user_warnings


class RecordedTableReader(TableReader):
    """A reader whose readings go on tape when they are taken."""

    def __init__(self, buffer: RecordBuffer) -> None:
        self._buffer = buffer
        super().__init__(keep=True)

    def read(self) -> list[TableSnapshot]:
        found = super().read()
        for reading in found:
            self._buffer.reading(reading)
        # What they were made of is on tape, and need not stay in memory.
        return [replace(reading, blob=b"", text=None) for reading in found]


class RecordedRulesetWatcher:
    """nftables' rules, on tape as they are taken."""

    def __init__(self, watch: UpdateSource, buffer: RecordBuffer) -> None:
        self._watch, self._buffer = watch, buffer

    def changes(self) -> list[RulesetUpdate]:
        found = self._watch.changes()
        for change in found:
            self._buffer.nft(change)
        return found

    def is_coming(self, inode: int, generation: int) -> bool:
        return self._watch.is_coming(inode, generation)


class RecordingEnvironment(Environment):
    """One run on its way to a file: makes the parts that answer for the machine, each on tape. Raises OutputNotWritten.

    redacted: what all that is written has to pass.
    """

    def __init__(self, path: str, sizes: RotationLimits, redacted: RecordRedactor | None = None) -> None:
        self._redacted = redacted
        self.buffer = RecordBuffer()
        self.files = CaptureFiles(Path(path), sizes)
        self.writer: CaptureWriter | None = None
        self.sandboxes: RecordedCniCache | None = None
        self.heard = RecordedConntrackListener(self.buffer, EntryEvents())
        self._closed = False
        self._function: Callable[[int], str] = lambda address: ""

    def cluster_view(self) -> ClusterView:
        """What names are found with."""
        store = ObjectStore()
        store.on_apply(self.buffer.objects)
        self.sandboxes = RecordedCniCache(self.buffer.sandboxes)
        return ClusterView(store, self.sandboxes, addresses.local_addresses(), addresses.ipvs_addresses())

    def namespaces(self) -> JournaledNamespaces:
        return JournaledNamespaces(self.buffer.ask, Namespaces())

    def processes(self) -> JournaledProcesses:
        return JournaledProcesses(self.buffer.ask)

    def inspector(self, namespaces: Namespaces, processes: Processes) -> JournaledNamespaceInspector:
        return JournaledNamespaceInspector(self.buffer.ask, namespaces, processes)

    def function(self, symbols: Callable[[int], str]) -> Callable[[int], str]:
        self._function = asked_function(self.buffer.ask, symbols)
        return self._function

    def dropped(self, events: npt.NDArray[Any]) -> None:
        """Asks for the functions that drops were in. A run may end before it explains them, and a replay explains all."""
        for address in np.unique(events["object"][events["kind"] == record.Kind.EVENT_DROP]).tolist():
            self._function(address)

    def node(self) -> JournaledHostReader:
        return JournaledHostReader(self.buffer.ask)

    def reader(self) -> RecordedTableReader:
        return RecordedTableReader(self.buffer)

    def watch(self, watch: UpdateSource) -> RecordedRulesetWatcher:
        return RecordedRulesetWatcher(watch, self.buffer)

    def changes(self) -> RecordedChangeLog:
        return RecordedChangeLog(self.buffer)

    def entries(self) -> RecordedConntrackListener:
        return self.heard

    def start(
        self,
        session: Session,
        kube: OwnerResolver,
        namespaces: Namespaces,
        release: str,
        clock: int,
        drop_reasons: dict[int, str],
        tracking: set[int],
        facts: dict[str, list[CheckResult]],
        options: dict[str, Any],
    ) -> None:
        """The file is written from now on, and begins with what never changes in a run."""
        names = {inode: namespaces.name(inode) for inode in namespaces.named()}
        wanted = asdict(kube.current) | {"hosts": [str(h) for h in kube.current.hosts]}
        system = os.uname()
        told = {
            "program": __version__,
            "host": {"name": system.nodename, "machine": system.machine, "kernel": release},
            "clock": {"offset": clock, "zone": local_zone(), "began": time.time_ns()},
            "layout": record_layout.describe(),
            "answers": ALL,
            "ring": self.files.sizes.ring,
            "options": plain(options),
            "facts": plain(facts),
            "filter": plain(wanted),
            "probes": [[p.probe.name, p.way, p.symbol] for p in session.planned],
            "acts": plain(session.acts),
            "drop_reasons": plain(drop_reasons),
            "namespaces": {"node": namespaces.node, "own": namespaces.own, "names": plain(names), "named": list(names)},
            "tracking": sorted(tracking),
            "addresses": sorted(kube.cluster.local),
            "ipvs_addresses": sorted(kube.cluster.ipvs),
        }  # fmt: skip
        self.files.describe(self._redacted.meta(told) if self._redacted else told)
        self.writer = CaptureWriter(self.files.insert, self.files.close, clock, self._redacted)
        self.buffer.start(self.writer.put)

    def source(self, session: Session, kube: OwnerResolver) -> RecordingSource:
        return RecordingSource(session, kube, self)

    def close(self, seconds: float | None = None) -> list[str]:
        if self._closed:
            return []
        self._closed = True
        if seconds is not None:
            self.buffer.end(seconds)
        self.buffer.flush()
        if not self.writer:
            self.files.discard()
            return []
        self.writer.close()
        lost = self.writer.lost
        return self.writer.said() + user_warnings.read() + ([f"{lost} events are not in the capture."] if lost else [])


class RecordingSource(LiveSource):
    """The running probes, on tape."""

    def __init__(self, session: Session, kube: OwnerResolver, recording: RecordingEnvironment) -> None:
        super().__init__(session, kube)
        self._recording, self._buffer = recording, recording.buffer

    def read(self, last: bool) -> Batch:
        now = time.monotonic_ns()
        slots = self.session.drain()
        self._buffer.add_batch(now, slots, last)
        if self._recording.sandboxes:
            self._recording.sandboxes.turn()
        self._recording.heard.ports = self._kube.ports() if self._kube else ()
        losses = self.session.losses()
        for loss in losses:
            self._buffer.loss(loss)
        events = record.unpack(slots)
        self._recording.dropped(events)
        return Batch(now, events, losses, last)

    def poll_losses(self) -> None:
        super().poll_losses()
        self._recording.heard.ports = self._kube.ports() if self._kube else ()

    def renewals(self) -> list[RenewedFilter]:
        found = super().renewals()
        for renewed in found:
            self._buffer.renewed(renewed)
        return found

    def mark_unexplained(self, chunks: int) -> None:
        self._buffer.mark_unexplained(chunks)

    def notes(self) -> list[str]:
        told = super().notes()
        for note in told:
            self._buffer.note(note)
        told += self._buffer.troubles()
        return told + (self._recording.writer.said() if self._recording.writer else [])
