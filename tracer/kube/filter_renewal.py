# SPDX-License-Identifier: Apache-2.0
"""Renews the filter of the running probes as soon as the API tells of a change, also while packets are being explained.

Packets of one turn are explained by the same objects: the store does not change until the turn is over, which may take minutes
when packets come faster than they are explained. The probes cannot wait for that: what a changed Service gets meanwhile would
pass unseen. So each change is applied at once to a second store, in the thread that brought it, and the probes get its filter.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from tracer.kube import selectors
from tracer.kube.catalog import ClusterView
from tracer.kube.cni_cache import CniCache
from tracer.kube.selectors import End, Selectors
from tracer.kube.store import Change, ObjectStore
from tracer.model.filter import Filter
from tracer.util.worker import user_warnings

KEPT = 256
"""Renewals that wait for their turn, and those that packets are still matched with; the oldest go first, and are counted."""


@dataclass(frozen=True)
class RenewedFilter:
    """since: when the probes began to go by the filter, ns, CLOCK_MONOTONIC; 0 = from the start. ends: what is asked for."""

    since: int
    ends: frozenset[End]
    filter: Filter


class FilterRenewal:
    """The filter by the newest objects. known: what the packets are explained by; base: the options that name no object."""

    def __init__(self, selectors: Selectors, base: Filter, cluster: ClusterView) -> None:
        self._words, self._base = selectors, base
        # Its own store, and its own view of the CNI cache: what is asked of the recorded one would be recorded.
        self._known = ClusterView(ObjectStore(cluster.store.node), CniCache(), cluster.local, cluster.ipvs)
        self._known.store.on_change(self._renew)
        cluster.store.on_coming(self._take)
        self._lock = threading.Lock()
        self._write: Callable[[Filter], None] | None = None
        self._waiting: deque[RenewedFilter] = deque(maxlen=KEPT)
        self._newest: RenewedFilter | None = None
        self.dropped = 0

    def attach(self, write: Callable[[Filter], None]) -> None:
        """The probes run: write gives them a filter. They get the newest one."""
        with self._lock:
            self._write = write
        self._renew()

    def detach(self) -> None:
        """The probes are about to end: nothing is written any more when this returns."""
        with self._lock:
            self._write = None

    def read(self) -> list[RenewedFilter]:
        """What was renewed since the last call."""
        with self._lock:
            found = list(self._waiting)
            self._waiting.clear()
        return found

    @property
    def newest(self) -> Filter | None:
        """What the probes go by now."""
        newest = self._newest
        return newest.filter if newest else None

    def _take(self, change: Change) -> None:
        what, kind, bodies = change
        store = self._known.store
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
            if not self._write:
                return
            try:
                with self._known.store.still():
                    ends = selectors.ends(self._words, self._known)
                    to = selectors.kernel_filter(self._base, ends, self._known)
                before = self._newest
                if before and before.ends == ends and before.filter == to:
                    return
                if not before or before.filter != to:
                    self._write(to)
            except Exception as e:
                user_warnings.add_failure("renewing the filter of the probes", e)
                return
            self._newest = RenewedFilter(time.monotonic_ns() if before else 0, ends, to)
            self.dropped += len(self._waiting) == KEPT
            self._waiting.append(self._newest)


class FilterHistory:
    """What was asked for at which time: a packet is matched with what held when it came, and with what came after."""

    def __init__(self) -> None:
        self._kept: deque[RenewedFilter] = deque(maxlen=KEPT)
        self.dropped = 0

    def __bool__(self) -> bool:
        return bool(self._kept)

    def add(self, renewed: RenewedFilter) -> None:
        self.dropped += len(self._kept) == KEPT
        self._kept.append(renewed)

    def at(self, time_ns: int) -> list[frozenset[End]]:
        """What was asked for at that time (ns, CLOCK_MONOTONIC) and later; the oldest that is kept where that is newer."""
        found: list[frozenset[End]] = []
        for renewed in reversed(self._kept):
            found.append(renewed.ends)
            if renewed.since <= time_ns:
                break
        return found

    def ports(self) -> tuple[int, ...]:
        """All ports that the filters let pass; () = any port."""
        sets = [renewed.filter.ports for renewed in self._kept]
        return tuple(sorted({port for each in sets for port in each})) if all(sets) else ()


def sentence(before: Filter, renewed: RenewedFilter) -> str:
    """What the user is told of a renewal. before: the filter that held until then."""
    to, wall = renewed.filter, renewed.since + time.time_ns() - time.monotonic_ns()
    state = f"{time.strftime('%H:%M:%S', time.localtime(wall // 10**9))}.{wall // 10**6 % 1000:03d}"
    hosts = [*map(_place, to.hosts)], [*map(_place, before.hosts)]
    came = [h for h in hosts[0] if h not in hosts[1]] + [f"port {p}" for p in to.ports if p not in before.ports]
    went = [h for h in hosts[1] if h not in hosts[0]] + [f"port {p}" for p in before.ports if p not in to.ports]
    parts = [f"{what} {_few(names)}" for what, names in (("with", came), ("without", went)) if names]
    return f"The objects have changed. Since {state} the probes go by a new filter{': ' * bool(parts)}{', '.join(parts)}."


def _place(network: object) -> str:
    return str(network).removesuffix("/32").removesuffix("/128")


def _few(names: list[str]) -> str:
    return ", ".join(names[:6]) + f" and {len(names) - 6} more" * (len(names) > 6)
