# SPDX-License-Identifier: Apache-2.0
"""Renews the filter of the running probes when the API reports a change, also while packets are being explained.

All packets of a batch are explained with the same objects, so the store does not change until the end of the batch. That may
take minutes if packets come faster than they are explained. The probes cannot wait: they would miss packets of a changed
Service. So the thread that receives a change applies it at once to a second store, and the probes get the filter of that store.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from tracer.kube import selected_ends, selectors
from tracer.kube.catalog import ClusterView
from tracer.kube.cni_cache import CniCache
from tracer.kube.selected_ends import DirectedEnds, End
from tracer.kube.selectors import Selectors
from tracer.kube.store import Change, ObjectStore
from tracer.model.filter import Filter
from tracer.util.bounded_queue import BoundedQueue
from tracer.util.worker import user_warnings

KEPT_RENEWALS = 256
"""Maximum number of pending renewals, and of renewals that packets are still matched with. The oldest is dropped, counted."""


@dataclass(frozen=True)
class RenewedFilter:
    """A filter of the probes.

    Attributes:
        since: Time from which the probes use it, ns, CLOCK_MONOTONIC; 0 = from the start.
        ends: The requested endpoints of either end.
        filter: The filter for the kernel.
        directed: The requested sources and destinations.
    """

    since: int
    ends: frozenset[End]
    filter: Filter
    directed: DirectedEnds = field(default_factory=DirectedEnds)


class FilterRenewal:
    """Computes the filter from the newest objects."""

    def __init__(self, selectors: Selectors, base: Filter, cluster: ClusterView) -> None:
        self._selectors, self._base = selectors, base
        # Its own store and CNI cache: queries to the recorded one would be recorded.
        self._cluster = ClusterView(ObjectStore(cluster.store.node), CniCache(), cluster.local, cluster.ipvs)
        self._cluster.store.on_change(self._renew)
        cluster.store.on_coming(self._take)
        self._lock = threading.Lock()
        self._write: Callable[[Filter], None] | None = None
        self._waiting: BoundedQueue[RenewedFilter] = BoundedQueue(KEPT_RENEWALS, "new filters to read")
        self._newest: RenewedFilter | None = None

    def attach(self, write: Callable[[Filter], None]) -> None:
        """Sets the function that gives the running probes a filter, and gives them the newest one."""
        with self._lock:
            self._write = write
        self._renew()

    def detach(self) -> None:
        """Stops writing before the probes end. When this returns, nothing is written any more."""
        with self._lock:
            self._write = None

    def read(self) -> list[RenewedFilter]:
        """Returns the renewals since the last call."""
        with self._lock:
            return self._waiting.read()

    @property
    def newest(self) -> Filter | None:
        """The current filter of the probes."""
        newest = self._newest
        return newest.filter if newest else None

    def _take(self, change: Change) -> None:
        what, kind, bodies = change
        store = self._cluster.store
        if what == "named":
            store.node = kind
            self._renew()
        elif what == "load":
            store.load(bodies)
        elif what == "replace":
            store.replace(kind, bodies)
        else:
            for body in bodies:
                (store.apply if what == "apply" else store.delete)(kind, body)

    def _renew(self) -> None:
        with self._lock:
            if not self._write or self._cluster.store.is_full:
                return
            try:
                with self._cluster.store.still():
                    ends = selectors.ends(self._selectors, self._cluster)
                    directed = selectors.directed_ends(self._selectors, self._cluster)
                    wanted = ends if self._selectors.has_either_end else None
                    to = selected_ends.kernel_filter(self._base, wanted, self._cluster, directed)
                before = self._newest
                if before and (before.ends, before.directed, before.filter) == (ends, directed, to):
                    return
                if not before or before.filter != to:
                    self._write(to)
            except Exception as e:
                user_warnings.add_failure("renewing the filter of the probes", e)
                return
            self._newest = RenewedFilter(time.monotonic_ns() if before else 0, ends, to, directed)
            self._waiting.append(self._newest)


class FilterHistory:
    """The filters by time. A packet is matched with the filter at its own time and with all later ones."""

    def __init__(self) -> None:
        self._kept: BoundedQueue[RenewedFilter] = BoundedQueue(KEPT_RENEWALS, "filters of earlier packets")

    def __bool__(self) -> bool:
        return bool(self._kept)

    def add(self, renewed: RenewedFilter) -> None:
        self._kept.append(renewed)

    def at(self, time_ns: int) -> list[RenewedFilter]:
        """Returns the filters at that time (ns, CLOCK_MONOTONIC) and later, as far back as they are kept."""
        found: list[RenewedFilter] = []
        for renewed in reversed(self._kept):
            found.append(renewed)
            if renewed.since <= time_ns:
                break
        return found

    def ports(self) -> tuple[int, ...]:
        """Returns all ports that the filters let pass; () = any port."""
        sets = [renewed.filter.ports for renewed in self._kept]
        return tuple(sorted({port for each in sets for port in each})) if all(sets) else ()


def sentence(before: Filter, renewed: RenewedFilter) -> str:
    """Returns the note about a renewal. before: the previous filter."""
    to, wall = renewed.filter, renewed.since + time.time_ns() - time.monotonic_ns()
    state = f"{time.strftime('%H:%M:%S', time.localtime(wall // 10**9))}.{wall // 10**6 % 1000:03d}"
    new, old = _conditions(to), _conditions(before)
    came, went = [each for each in new if each not in old], [each for each in old if each not in new]
    parts = [f"{what} {_few(names)}" for what, names in (("with", came), ("without", went)) if names]
    return f"The objects have changed. Since {state} the probes go by a new filter{': ' * bool(parts)}{', '.join(parts)}."


def _conditions(of: Filter) -> list[str]:
    """What a filter lets pass, as phrases."""
    sources, destinations = (f"source {_place(h)}" for h in of.sources), (f"destination {_place(h)}" for h in of.destinations)
    return [*map(_place, of.hosts), *sources, *destinations, *(f"port {p}" for p in of.ports)]


def _place(network: object) -> str:
    return str(network).removesuffix("/32").removesuffix("/128")


def _few(names: list[str]) -> str:
    return ", ".join(names[:6]) + f" and {len(names) - 6} more" * (len(names) > 6)
