# SPDX-License-Identifier: Apache-2.0
"""Replays a capture into any output: -r, stats, diff, query, export."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from tracer.capture.format.codec import MalformedRecord, from_json
from tracer.capture.replay.capture_reader import CaptureReader
from tracer.capture.replay.environment import ReplayEnvironment
from tracer.errors import BadOption, DamagedCapture, NoObjects, NoSuchObject
from tracer.kube import selected_ends
from tracer.kube import selectors as kube_selectors
from tracer.kube.catalog import ClusterView
from tracer.kube.owner_resolver import NAMED, ObjectSource, OwnerResolver
from tracer.kube.selectors import Selectors
from tracer.model.check import CheckResult
from tracer.model.filter import Filter
from tracer.model.packet import Packet
from tracer.model.summary import RunSummary
from tracer.pipeline import builder
from tracer.pipeline.builder import RunOptions
from tracer.pipeline.shutdown import StopRequest
from tracer.pipeline.source import RunLimits
from tracer.render.base import Output
from tracer.selection import stored_filter
from tracer.selection.display_filter import DisplayFilter
from tracer.util import memory, timezone
from tracer.util.status_line import StatusLine

LINE_SECONDS = 0.2
"""Time between two changes of the line that says how much of a capture was read, s."""


@dataclass(frozen=True)
class ReplayRequest:
    """Selects packets of a capture, in addition to the options of its run.

    Attributes:
        display_filter: selects packets by ports, hosts, interfaces and the like.
        selectors: selects packets by Kubernetes objects.
        drops_only: only packets with a bad outcome.
        count: number of packets; 0 = as many as the run had printed.
        no_rules: packets are explained without rules.
        follow: output by connection.
        is_by_packet: the output gets packets and SYN verdicts, also if the recorded run printed timelines instead.
        numbers_connections: each packet has the number of its connection, and the output gets each connection once.
        quiet: only what went wrong is printed; all is counted.
    """

    display_filter: DisplayFilter = field(default_factory=DisplayFilter)
    selectors: Selectors = field(default_factory=Selectors)
    drops_only: bool = False
    count: int = 0
    no_rules: bool = False
    follow: bool = False
    is_by_packet: bool = False
    numbers_connections: bool = False
    quiet: bool = False


class ReplayedOwnerResolver(OwnerResolver):
    """Resolves owners from the objects of a capture, and selects packets by the request, in addition to the run's selectors."""

    def __init__(self, cluster: ClusterView, selectors: Selectors, request: ReplayRequest) -> None:
        super().__init__(ObjectSource(none=True, known=lambda: cluster, replayed=True), selectors, Filter())
        self._request, self._request_ends, self._version = request, frozenset[selected_ends.End](), -1
        self._request_directed = selected_ends.DirectedEnds()
        self._names = replace(request.selectors, node_ports=(), host_ports=())
        self._is_missing = bool(self._names)

    def wants(self, packet: Packet) -> bool:
        if not super().wants(packet):
            return False
        if not self._request.selectors:
            return True
        if self._version != self.cluster.store.version:
            self._version = self.cluster.store.version
            self._request_ends = kube_selectors.ends(self._request.selectors, self.cluster)
            self._request_directed = kube_selectors.directed_ends(self._request.selectors, self.cluster)
            self._is_missing = self._is_missing and self._miss_request() is not None
        wanted = self._request_ends if self._request.selectors.has_either_end else None
        return selected_ends.selects(packet, wanted, self._request_directed, self.cluster)

    def check_request(self) -> None:
        """Raises NoSuchObject if a named object of the request was never there, NoObjects if the capture has no objects."""
        missed = self._miss_request() if self._is_missing else None
        if missed and not self.cluster.store.services and not self.cluster.store.pods:
            raise NoObjects(f"{NAMED} need Kubernetes' objects, and the capture has none.")
        if missed:
            raise missed

    def _miss_request(self) -> NoSuchObject | None:
        """The error about an object of the request that is not there now."""
        try:
            kube_selectors.check(self._names, self.cluster)
        except NoSuchObject as e:
            return e
        return None


def options(capture: CaptureReader) -> dict[str, Any]:
    """The options of the recorded run; {} when they cannot be read."""
    return _meta_dict(capture, "options")


def _meta_dict(capture: CaptureReader, name: str) -> dict[str, Any]:
    try:
        found = from_json(capture.meta.get(name, {"dict": []}))
    except MalformedRecord:
        return {}
    return found if isinstance(found, dict) else {}


def facts(capture: CaptureReader, full: bool) -> list[CheckResult]:
    """The check results of the recorded run. full: also those of available functions, as for JSON and -v."""
    results = _meta_dict(capture, "facts").get("full" if full else "missed", [])
    return [f for f in results if isinstance(f, CheckResult)] if isinstance(results, list) else []


def release(capture: CaptureReader) -> str:
    """Release of the traced kernel."""
    return capture.host.get("kernel", "unknown")


def replay(
    capture: CaptureReader,
    output: Output,
    request: ReplayRequest,
    stop: StopRequest,
    progress: Callable[[int], None] = lambda events: None,
) -> RunSummary:
    """Replays a capture. The caller prints the beginning and the end of the output.

    Args:
        capture: the capture.
        output: gets packets, findings, verdicts and timelines.
        request: selects packets.
        stop: request to end.
        progress: called with the number of events of each replayed chunk.

    Returns:
        The summary of the replayed run.
    """
    clock = capture.meta.get("clock")
    if isinstance(clock, dict):
        timezone.use(str(clock.get("zone", "")))
    run_options = options(capture)
    environment = ReplayEnvironment(capture, progress)
    try:
        run_selectors = Selectors(**run_options.get("words", {}))
    except (TypeError, BadOption):
        run_selectors = Selectors()
    kube = ReplayedOwnerResolver(environment.cluster_view(), run_selectors, request)
    was_partial = run_options.get("drops_only") is True
    filters = (_run_conditions(capture), request.display_filter)
    run = RunOptions(
        RunLimits(request.count or _int(run_options.get("count")), stops_at_count=bool(request.count)),
        has_rules=not (request.no_rules or run_options.get("no_rules") is True),
        by_connection=not request.is_by_packet and (request.follow or run_options.get("follow") is True),
        numbers_connections=request.numbers_connections,
        drops_only=request.drops_only or was_partial,
        quiet=request.quiet,
        is_partial=was_partial,
        is_one_sided=run_options.get("one_sided") is True or any(each.is_one_sided for each in (request.selectors, *filters)),
        filters=filters,
    )
    with memory.reused_heap(), kube, ExitStack() as stack:
        kube.filter()
        built = builder.build(environment, kube, output, run, stack)
        built.run.begin()
        built.run.run(stop)
        if not stop.is_requested:
            kube.check_request()
    return built.run.summary


def _run_conditions(capture: CaptureReader) -> DisplayFilter:
    """What user space evaluated of the recorded run's filter."""
    found = options(capture).get("conditions", {})
    try:
        return stored_filter.decoded(found)
    except ValueError:
        capture.missed += 1
        return DisplayFilter()


def _int(value: object) -> int:
    return value if isinstance(value, int) else 0


CUT_SHORT = "The recording did not end as it should: what came last may be missing."
"""Note on a capture without an END record."""


def check_complete(capture: CaptureReader) -> None:
    """Raises DamagedCapture when a part of the capture could not be read."""
    if capture.missed:
        parts = "A part" if capture.missed == 1 else f"{capture.missed} parts"
        raise DamagedCapture(f"{parts} of {capture.path} could not be read; what could be is above.")


@contextmanager
def bar(capture: CaptureReader, what: str, outputs: Iterable[Output], is_shown: bool = True) -> Iterator[Callable[[int], None]]:
    """A block that reads a capture: a terminal at stderr shows in one line how much of it was read.

    Args:
        capture: The capture.
        what: What is done, the first words of the line.
        outputs: Write notes to the same terminal, above the line.
        is_shown: False: the line is never shown.

    Yields:
        A function that takes the number of further events that were read.
    """
    line = StatusLine(is_wanted=is_shown)
    if not line.is_live:
        yield lambda events: None
        return
    for output in outputs:
        output.err = line.guarded(output.err)
    total, began = sum(events for _, _, events in capture.spans()), time.monotonic()
    read, next_line = 0, began + LINE_SECONDS

    def progress(events: int) -> None:
        nonlocal read, next_line
        read, now = read + events, time.monotonic()
        if now >= next_line:
            next_line = now + LINE_SECONDS
            line.show(f"{what}: {_format_share(read, total, now - began)}")

    try:
        yield progress
    finally:
        line.erase()


def _format_share(read: int, total: int, seconds: float) -> str:
    """How much was read, and how long the rest takes. read, total: numbers of events; seconds: time since the beginning."""
    if not 0 < read <= total:
        return f"{read:,} events"
    return f"{100 * read // total} %, {math.ceil(seconds * (total - read) / read):,} s left"
