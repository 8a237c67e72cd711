# SPDX-License-Identifier: Apache-2.0
"""Reads the endpoints of single Services again while a run goes on, in a thread of its own: the loop of the run waits for no
API server."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tracer.cluster_findings.endpoint_history import EndpointHistory, EndpointName, plain_address
from tracer.errors import NoObjects
from tracer.kube import objects
from tracer.model.kube import Endpoint
from tracer.util.evictions import evictions
from tracer.util.lru_dict import LruDict
from tracer.util.worker import Worker

MOST_SERVICES = 64
"""Most Services that are read again at a time."""
EVERY_NS = 5_000_000_000
"""Time from one reading of a Service to the next, ns."""
FOR_NS = 60_000_000_000
"""Time for which a Service is read again after it was last asked for, ns."""
LONGEST_PAUSE_NS = 15_000_000_000
"""Longest time between two readings, ns: in a longer one an endpoint could come and go without being seen."""
MOST_GONE = 4096
"""Most endpoints of a Service that are remembered after they have gone."""
WAIT_SECONDS = 1.0
"""Longest time until a Service that was asked for is read, s."""

Slices = Callable[[str, str], list[dict[str, Any]]]
"""Lists the EndpointSlices of a Service: namespace, name. Raises NoObjects if the API gives none."""


@dataclass
class _Watched:
    """A Service that is read again. until: end of the readings; asked: the last one; both ns."""

    until: int
    asked: int = 0
    history: EndpointHistory | None = None


class EndpointReadings:
    """The endpoints of Services that were asked for.

    Args:
        slices: Lists the slices of a Service.
        now: The reference clock, ns; None = that of this machine, without steps.
    """

    def __init__(self, slices: Slices, now: Callable[[], int] | None = None) -> None:
        began = time.time_ns() - time.monotonic_ns()
        self._slices = slices
        self._now = now or (lambda: time.monotonic_ns() + began)
        self._watched: LruDict[tuple[str, str], _Watched] = LruDict(MOST_SERVICES, "Services that are read again")
        self._lock = threading.Lock()
        self._is_over, self._is_asked = threading.Event(), threading.Event()
        self._worker: Worker | None = None

    def ask(self, namespace: str, name: str) -> None:
        """Reads the endpoints of a Service now and for some time. Does not wait for the answer."""
        with self._lock:
            watched = self._watched.get((namespace, name))
            if watched is None:
                self._watched[namespace, name] = watched = _Watched(0)
                self._is_asked.set()
            watched.until = self._now() + FOR_NS
            if self._worker is None and not self._is_over.is_set():
                self._worker = Worker("endpoints read again", self._read_due).start()

    def history(self, namespace: str, name: str) -> EndpointHistory | None:
        """What was read of a Service; None = nothing."""
        with self._lock:
            watched = self._watched.get((namespace, name))
            return watched.history if watched else None

    def close(self) -> None:
        """Ends the thread; a request that is under way is not waited for."""
        self._is_over.set()
        self._is_asked.set()

    def _read_due(self) -> bool:
        """Reads the Services of which it is time. Returns False when the run is over."""
        self._is_asked.wait(WAIT_SECONDS)
        self._is_asked.clear()
        self.read_due()
        return not self._is_over.is_set()

    def read_due(self) -> None:
        """Reads the Services of which it is time, in the thread of the caller."""
        now = self._now()
        with self._lock:
            due = [key for key, each in self._watched.items() if each.until > now and now - each.asked >= EVERY_NS]
        for namespace, name in due:
            if self._is_over.is_set():
                return
            self._read(namespace, name)

    def _read(self, namespace: str, name: str) -> None:
        asked = self._now()
        with self._lock:
            if watched := self._watched.get((namespace, name)):
                watched.asked = asked  # also if this reading ends by an error: others have their turn
        try:
            bodies = self._slices(namespace, name)
        except NoObjects:
            bodies = None
        answered = self._now()
        with self._lock:
            watched = self._watched.get((namespace, name))
            if watched:
                watched.history = None if bodies is None else _next(watched.history, name, bodies, asked, answered)


def _next(
    before: EndpointHistory | None, name: str, bodies: list[dict[str, Any]], asked: int, answered: int
) -> EndpointHistory:
    """The history with one more reading."""
    found: dict[tuple[str, str], list[Endpoint]] = {}
    for body in bodies:
        (_, service), ends = objects.slice_endpoints(body)
        if service == name:
            for key, end in ends:
                found.setdefault(key, []).append(replace(end, address=plain_address(end.address)))
    newest = {key: tuple(ends) for key, ends in found.items()}
    if before is None or answered - before.asked > LONGEST_PAUSE_NS:
        return EndpointHistory(answered, asked, newest, {})
    present = _names(newest)
    gone = {end: since for end, since in before.gone.items() if end not in present}
    gone |= dict.fromkeys(_names(before.ends) - present, answered)
    if len(gone) > MOST_GONE:
        # Of an endpoint that is forgotten here it would be said that it was never there.
        evictions.add("endpoints that have gone", len(gone))
        return EndpointHistory(answered, asked, newest, {})
    return EndpointHistory(before.since, asked, newest, gone)


def _names(ends: Mapping[tuple[str, str], tuple[Endpoint, ...]]) -> set[EndpointName]:
    return {(*key, end.address, end.port) for key, found in ends.items() for end in found}
