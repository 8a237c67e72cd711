# SPDX-License-Identifier: Apache-2.0
"""What the capture of a node says about it: since when it shows packets, and which ones, its clock, and Kubernetes' objects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tracer.capture.format.codec import from_json
from tracer.capture.format.schema import Record
from tracer.capture.replay import runner
from tracer.capture.replay.capture_reader import DAMAGE_ERRORS, CaptureReader
from tracer.capture.replay.file_series import opened
from tracer.cluster.filter_coverage import FilterCoverage
from tracer.cluster.recorded_clock import RecordedClock
from tracer.errors import TraceError
from tracer.kube.catalog import ClusterView
from tracer.kube.selectors import Selectors
from tracer.kube.store import ObjectStore
from tracer.selection import stored_kernel_filter

PARTIAL = ("drops_only", "follow", "count", "conditions")
"""Options of a run by which its capture lacks packets, or a replay shows fewer of them."""


@dataclass(frozen=True)
class RecordedNode:
    """A node of which a capture is read.

    Attributes:
        clock: Its clock, with the time from which on its capture has packets.
        is_whole: All batches and records between the first one and the last one can be read.
        covers: The packets that it shows for certain.
    """

    clock: RecordedClock
    is_whole: bool
    covers: FilterCoverage


@dataclass(frozen=True)
class RecordedNodes:
    """All nodes of which captures are read.

    Attributes:
        nodes: The nodes by their names.
        store: What their captures have of Kubernetes' objects: each object that was there at any time.
    """

    nodes: dict[str, RecordedNode] = field(default_factory=dict)
    store: ObjectStore = field(default_factory=ObjectStore)

    @classmethod
    def read(cls, captures: Mapping[str, Sequence[str]]) -> RecordedNodes:
        """Reads captures once, without their packets.

        Args:
            captures: The files of each node.

        Raises:
            CaptureUnreadable, NewerCapture: One of them is no capture that can be read.
            BadOption: Captures of one node are not of one run.
        """
        found = cls()
        for name, paths in captures.items():
            with opened(paths) as capture:
                found.nodes[name] = _read(capture, found.store)
        return found


def _read(capture: CaptureReader, everything: ObjectStore) -> RecordedNode:
    """What a capture says about its node. everything: gets its objects, too."""
    first = after = began = 0
    is_whole = True
    for number, span in enumerate(capture.batch_spans()):
        if not number:
            first, began = span.first, span.began
        elif span.first != after:
            is_whole = False
        after = span.after
    own = ObjectStore()
    for batch, kind, _, body in capture.records():
        if kind != Record.OBJECTS:
            continue
        try:
            if batch <= first:
                _apply(own, *body)
            _add(everything, *body)
        except DAMAGE_ERRORS:
            is_whole = False
    known = capture.clock()
    clock = RecordedClock(*known, began=began) if known else RecordedClock(began=began)
    is_whole = is_whole and not capture.missed and not own.is_full and not everything.is_full
    return RecordedNode(clock, is_whole, _coverage(capture, own))


def _apply(store: ObjectStore, what: str, kind: str, bodies: list[dict[str, Any]]) -> None:
    """Repeats a change of the node's own objects."""
    if what == "named":
        store.node = kind
    elif what == "load":
        store.load(bodies)
    elif what == "replace":
        store.replace(kind, bodies)
    elif what in ("apply", "delete"):
        for one in bodies:
            (store.apply if what == "apply" else store.delete)(kind, one)


def _add(store: ObjectStore, what: str, kind: str, bodies: list[dict[str, Any]]) -> None:
    """Adds objects, and removes none: an address of two objects belongs to neither for certain."""
    if what == "load":
        store.load(bodies)
    elif what in ("replace", "apply"):
        for one in bodies:
            store.apply(kind, one)


def _coverage(capture: CaptureReader, objects: ObjectStore) -> FilterCoverage:
    """What the filter of the recorded run selects. A capture that does not say it covers nothing for certain."""
    options, nothing = runner.options(capture), FilterCoverage(None, Selectors(), ClusterView())
    try:
        stored = from_json(capture.meta["filter"])
        chosen = stored_kernel_filter.decoded(stored)
        is_partial = any(options.get(name) for name in PARTIAL)
        found = None if is_partial else stored_kernel_filter.on_the_wire(chosen)
        local = frozenset(capture.meta.get("addresses", ()))
        return FilterCoverage(found, Selectors(**options["words"]), ClusterView(objects, local=local))
    except (TraceError, *DAMAGE_ERRORS):
        return nothing
