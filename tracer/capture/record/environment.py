# SPDX-License-Identifier: Apache-2.0
"""The objects of a run that query the machine and record its answers, and the source that records each batch."""

from __future__ import annotations

import os
import time
from collections.abc import Collection
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from tracer import __version__
from tracer.capture.change_events import RecordedChangeLog, RecordedConntrackListener
from tracer.capture.cni_journal import RecordedCniCache
from tracer.capture.format import record_layout
from tracer.capture.format.codec import to_json
from tracer.capture.format.schema import ALL_ANSWERS
from tracer.capture.journal import (
    JournaledProcesses,
    JournaledPrograms,
    RecordedNamespaces,
    journaled_function,
)
from tracer.capture.record import prefetch
from tracer.capture.record.buffer import RecordBuffer
from tracer.capture.record.capture_files import CaptureFiles, CaptureTarget, RotationLimits
from tracer.capture.record.prefetch import Prefetcher
from tracer.capture.record.writer import CaptureWriter
from tracer.capture.redact.records import RecordRedactor
from tracer.events import record
from tracer.events.record import EventArray
from tracer.kernel.session import Kernel, Session
from tracer.kube.catalog import ClusterView
from tracer.kube.filter_renewal import RenewedFilter
from tracer.kube.owner_resolver import OwnerResolver
from tracer.model.summary import OutputLoss
from tracer.node.identity import boot_id, node_name
from tracer.node.namespace_questions import NamespaceInspector
from tracer.node.namespace_view import NamespaceReader
from tracer.node.namespaces import NamespaceNames
from tracer.node.node import HostReader
from tracer.node.processes import SocketOwners
from tracer.pipeline.assembly import Assembler, AssemblyParts, KernelNames, packet_assembler
from tracer.pipeline.budget_keeper import BudgetKeeper
from tracer.pipeline.environment import RunStart
from tracer.pipeline.live_environment import LiveEnvironment, rule_resolver
from tracer.pipeline.live_source import LiveSource
from tracer.pipeline.reader_budget import BudgetLimits
from tracer.pipeline.source import Batch
from tracer.rules.iptables.table_reader import TableReader, TableSnapshot
from tracer.rules.nftables.snapshot_cache import UpdateSource
from tracer.rules.nftables.watcher import RulesetUpdate
from tracer.rules.rule_resolver import RuleResolver
from tracer.selection import stored_kernel_filter
from tracer.util.questions import Journal
from tracer.util.timezone import local_zone
from tracer.util.worker import user_warnings


class RecordedTableReader(TableReader):
    """A table reader that records its readings."""

    def __init__(self, buffer: RecordBuffer) -> None:
        self._buffer = buffer
        super().__init__(keep=True)

    def read(self) -> list[TableSnapshot]:
        found = super().read()
        for reading in found:
            self._buffer.add_reading(reading)
        # The raw tables are recorded, and need not stay in memory.
        return [replace(reading, blob=b"", text=None) for reading in found]


class RecordedRulesetWatcher:
    """Records the readings of nftables rules."""

    def __init__(self, watcher: UpdateSource, buffer: RecordBuffer) -> None:
        self._watcher, self._buffer = watcher, buffer

    def changes(self) -> list[RulesetUpdate]:
        found = self._watcher.changes()
        for change in found:
            self._buffer.add_nft(change)
        return found

    def is_coming(self, inode: int, generation: int) -> bool:
        return self._watcher.is_coming(inode, generation)


class RecordingEnvironment:
    """Creates the objects of a run that is recorded. Raises OutputNotWritten.

    Args:
        path: the capture.
        limits: sizes of its files.
        redactor: redacts everything that is written; None = nothing is redacted.
        explains: packets are also explained; False: only what a replay will need is asked.
        files: what takes the capture; None = files at `path`.
        budget: what the run may use; None = no limit.
    """

    def __init__(
        self,
        path: str,
        limits: RotationLimits,
        redactor: RecordRedactor | None = None,
        explains: bool = True,
        files: CaptureTarget | None = None,
        budget: BudgetLimits | None = None,
    ) -> None:
        self._redactor, self._explains = redactor, explains
        self.buffer = RecordBuffer()
        self.files = files or CaptureFiles(Path(path), limits)
        self.writer: CaptureWriter | None = None
        self.sandboxes = RecordedCniCache(self.buffer.add_sandboxes)
        self._live = LiveEnvironment(budget)
        self.conntrack = RecordedConntrackListener(self.buffer, self._live.conntrack_listener())
        self._closed = False
        self._names: KernelNames | None = None
        self._programs: JournaledPrograms | None = None

    def cluster_view(self) -> ClusterView:
        view = ClusterView.of_machine(self.sandboxes)
        view.store.on_apply(self.buffer.add_objects)
        return view

    def attach(self, kernel: Kernel, session: Session) -> None:
        self._live.attach(kernel, session)

    def clock(self) -> int:
        return self._live.clock()

    def kernel_names(self) -> KernelNames:
        live = self._live.kernel_names()
        self._names = KernelNames(journaled_function(self.buffer.journal, live.function), live.drop_reasons)
        return self._names

    def journal_drops(self, events: EventArray) -> None:
        """Records the functions and the programs of all drops. The run may end before it explains them, but a replay explains
        all packets."""
        if self._names and self._programs:
            prefetch.ask_of_drops(events, self._names, self._programs)

    def namespaces(self) -> RecordedNamespaces:
        return RecordedNamespaces(self.buffer.journal, self._live.namespaces())

    def tracking(self) -> Collection[int]:
        return self._live.tracking()

    def processes(self) -> JournaledProcesses:
        return JournaledProcesses(self.buffer.journal, self._live.processes())

    def inspector(self, namespaces: NamespaceNames, processes: SocketOwners) -> NamespaceInspector:
        return NamespaceInspector(NamespaceReader(namespaces, processes), self.buffer.journal)

    def host_reader(self) -> HostReader:
        return self._live.host_reader()

    def journal(self) -> Journal:
        return self.buffer.journal

    def rules(self, namespaces: NamespaceNames, stack: ExitStack) -> RuleResolver:
        def reader() -> RecordedTableReader:
            return RecordedTableReader(self.buffer)

        def wrap(updates: UpdateSource) -> RecordedRulesetWatcher:
            return RecordedRulesetWatcher(updates, self.buffer)

        return rule_resolver(self._live.session, namespaces, stack, reader, wrap)

    def programs(self, stack: ExitStack) -> JournaledPrograms:
        self._programs = JournaledPrograms(self.buffer.journal, self._live.programs(stack))
        return self._programs

    def change_log(self) -> RecordedChangeLog:
        return RecordedChangeLog(self.buffer)

    def conntrack_listener(self) -> RecordedConntrackListener:
        return self.conntrack

    def assembler(self, parts: AssemblyParts) -> Assembler:
        if not self._explains:
            return Prefetcher(parts, self.sandboxes)
        # A comparison would ask questions that a replay does not ask at the same places.
        return packet_assembler(parts, compares_paths=False)

    def start(self, run: RunStart) -> None:
        """Begins to write the file. It begins with `meta`, the values that do not change in a run."""
        session, kube, namespaces = self._live.session, run.kube, run.parts.namespaces
        names = {inode: namespaces.name(inode) for inode in namespaces.named()}
        kernel = self._live.kernel.release
        host = {"name": node_name(), "boot": boot_id(), "machine": os.uname().machine, "kernel": kernel}
        meta = {
            "program": __version__,
            "host": host,
            "clock": {"offset": run.parts.clock, "zone": local_zone(), "began": time.time_ns()},
            "layout": record_layout.describe(),
            "answers": ALL_ANSWERS,
            "ring": self.files.limits.ring,
            "options": to_json(run.options),
            "facts": to_json(run.results),
            "filter": to_json(stored_kernel_filter.encoded(kube.current)),
            "probes": [[p.probe.name, p.way, p.symbol] for p in session.planned],
            "acts": to_json(session.extensions),
            "drop_reasons": to_json(dict(run.parts.names.drop_reasons)),
            "namespaces": {"node": namespaces.node, "own": namespaces.own, "names": to_json(names), "named": list(names)},
            "tracking": sorted(run.parts.tracking),
            "addresses": sorted(kube.cluster.local),
            "ipvs_addresses": sorted(kube.cluster.ipvs),
        }  # fmt: skip
        self.files.describe(self._redactor.meta(meta) if self._redactor else meta)
        self.writer = CaptureWriter(self.files.insert, self.files.close, run.parts.clock, self._redactor)
        self.buffer.start(self.writer.put)

    def source(self, kube: OwnerResolver) -> RecordingSource:
        return RecordingSource(self._live.session, kube, self, self._live.budget())

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
        return self.writer.messages() + user_warnings.read() + ([f"{lost} events are not in the capture."] if lost else [])

    def not_written(self) -> list[OutputLoss]:
        lost = self.writer.lost if self.writer else 0
        return [OutputLoss(str(self.files.names[0]), lost, "the disk was too slow or full")] if lost else []


class RecordingSource(LiveSource):
    """Reads batches from the running probes and records them."""

    def __init__(
        self, session: Session, kube: OwnerResolver, environment: RecordingEnvironment, budget: BudgetKeeper | None = None
    ) -> None:
        super().__init__(session, kube, budget)
        self._environment, self._buffer = environment, environment.buffer

    def read(self, last: bool = False) -> Batch:
        now = time.monotonic_ns()
        slots = self._drained(now)
        self._buffer.add_batch(now, slots, last)
        self._environment.sandboxes.begin_batch()
        self._environment.conntrack.ports = self._kube.ports() if self._kube else ()
        losses = self._losses()
        for loss in losses:
            self._buffer.add_loss(loss)
        events = record.unpack(slots)
        self._environment.journal_drops(events)
        return Batch(now, events, losses, last)

    def poll_losses(self) -> None:
        super().poll_losses()
        self._environment.conntrack.ports = self._kube.ports() if self._kube else ()

    def renewals(self) -> list[RenewedFilter]:
        found = super().renewals()
        for renewed in found:
            self._buffer.add_filter(renewed)
        return found

    def mark_unexplained(self, chunks: int) -> None:
        self._buffer.mark_unexplained(chunks)

    def notes(self) -> list[str]:
        notes = super().notes()
        for note in notes:
            self._buffer.add_note(note)
        notes += self._buffer.warnings()
        return notes + (self._environment.writer.messages() if self._environment.writer else [])
