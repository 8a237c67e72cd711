# SPDX-License-Identifier: Apache-2.0
"""One run again, from a file, to any output: what `-r` does, and what every view and export is made with."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from tracer.capture.format.codec import MalformedRecord, rich
from tracer.capture.replay.capture_reader import CaptureReader
from tracer.capture.replay.display_filter import DisplayFilter
from tracer.capture.replay.environment import ReplayEnvironment
from tracer.connections.tracker import ConnectionTracker
from tracer.errors import BadOption, DamagedCapture
from tracer.findings import Findings
from tracer.findings.context import FindingContext
from tracer.kube import selectors as words_of
from tracer.kube.catalog import ClusterView
from tracer.kube.owner_resolver import ObjectSource, OwnerResolver
from tracer.kube.selectors import Selectors
from tracer.model.check import CheckResult
from tracer.model.filter import Filter
from tracer.model.packet import Packet
from tracer.model.summary import RunSummary
from tracer.pipeline.correlation import ConnectionStage
from tracer.pipeline.run import Run, RunLimits
from tracer.pipeline.shutdown import StopRequest
from tracer.render.base import Output
from tracer.util import timezone
from tracer.util.visible import visible


@dataclass(frozen=True)
class ReplayRequest:
    """What of a capture is wanted: beside what its run asked for. count: packets, 0 = as many as the run had printed."""

    wanted: DisplayFilter = field(default_factory=DisplayFilter)
    selectors: Selectors = field(default_factory=Selectors)
    drops_only: bool = False
    count: int = 0
    no_rules: bool = False
    follow: bool = False


class ReplayedOwnerResolver(OwnerResolver):
    """Kubernetes as a capture has it. also: words of the reader, beside those of the run."""

    def __init__(self, cluster: ClusterView, selectors: Selectors, asked: ReplayRequest) -> None:
        super().__init__(ObjectSource(none=True, known=lambda: cluster, replayed=True), selectors, Filter())
        self._asked, self._also, self._version = asked, frozenset[words_of.End](), -1

    def wants(self, packet: Packet) -> bool:
        if not super().wants(packet) or not self._asked.wanted(packet):
            return False
        if not self._asked.selectors:
            return True
        if self._version != self.cluster.store.version:
            self._version = self.cluster.store.version
            self._also = words_of.ends(self._asked.selectors, self.cluster)
        return words_of.matches(packet, self._also, self.cluster)


def options(capture: CaptureReader) -> dict[str, Any]:
    """Those of the recorded run; {} when they cannot be read."""
    return _told(capture, "options")


def _told(capture: CaptureReader, name: str) -> dict[str, Any]:
    try:
        found = rich(capture.meta.get(name, {"dict": []}))
    except MalformedRecord:
        return {}
    return found if isinstance(found, dict) else {}


def facts(capture: CaptureReader, full: bool) -> list[CheckResult]:
    """What that run could and could not tell. full: also what it could, as JSON and -v have it."""
    told = _told(capture, "facts").get("full" if full else "missed", [])
    return [f for f in told if isinstance(f, CheckResult)] if isinstance(told, list) else []


def release(capture: CaptureReader) -> str:
    """Of the kernel that was traced."""
    host = capture.meta.get("host")
    return str(host.get("kernel", "unknown")) if isinstance(host, dict) else "unknown"


def replay(
    capture: CaptureReader,
    output: Output,
    asked: ReplayRequest,
    stop: StopRequest,
    progress: Callable[[int], None] = lambda events: None,
) -> RunSummary:
    """Runs it again; what it says of itself at the begin and the end is left to the caller."""
    clock = capture.meta.get("clock")
    if isinstance(clock, dict):
        timezone.use(str(clock.get("zone", "")))
    told = options(capture)
    again = ReplayEnvironment(capture, progress)
    try:
        words = Selectors(**told.get("words", {}))
    except (TypeError, BadOption):
        words = Selectors()
    kube = ReplayedOwnerResolver(again.cluster_view(), words, asked)
    limits = RunLimits(asked.count or _int(told.get("count")), 0, asked.drops_only or told.get("drops_only") is True)
    findings = Findings(FindingContext(kube.cluster, again.node()))
    ended = capture.ended()
    with kube:
        kube.filter()
        assembler = again.assembler(asked.no_rules or told.get("no_rules") is True)
        connections = ConnectionTracker(again.offset) if asked.follow or told.get("follow") is True else None
        turns = again.turns
        syns = again.syns(told.get("drops_only") is True)
        following = ConnectionStage(syns, connections, turns.changes, findings, limits.drops_only, turns.entries)
        run = Run(turns, assembler, output, limits, kube, findings, following)
        run.begin()
        run.replay(turns.all(), stop, ended and ended[0], stop_at_limit=bool(asked.count))
    return run.summary


def _int(value: object) -> int:
    return value if isinstance(value, int) else 0


CUT_SHORT = "The recording did not end as it should: what came last may be missing."


def whole(capture: CaptureReader) -> None:
    """Raises DamagedCapture when something of the capture could not be read."""
    if capture.missed:
        parts = "A part" if capture.missed == 1 else f"{capture.missed} parts"
        raise DamagedCapture(f"{parts} of {capture.path} could not be read; what could be is above.")


@contextmanager
def bar(capture: CaptureReader, what: str, wanted: bool = True) -> Iterator[Callable[[int], None]]:
    """Shows how far a long reading is, on stderr, where that is a terminal; gives a function that takes events read."""
    if not (wanted and sys.stderr.isatty()):
        with nullcontext():
            yield lambda events: None
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(escape(visible(what)), total=sum(events for _, _, events in capture.spans()) or None)
        yield lambda events: progress.advance(task, events)
