# SPDX-License-Identifier: Apache-2.0
"""The interface of a run to Kubernetes: objects from a file, from the API, or none."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING

from tracer.errors import BadOption, NoObjects, NoSuchObject
from tracer.kube import kubeconfig, node_name, objects, selected_ends, selectors
from tracer.kube.attribution import attribute
from tracer.kube.catalog import ClusterView
from tracer.kube.cni_cache import MOST_FILES
from tracer.kube.filter_renewal import FilterHistory, FilterRenewal, RenewedFilter, sentence
from tracer.kube.kubeconfig import ApiAccess
from tracer.kube.selectors import Selectors
from tracer.kube.store import MOST_ENTRIES
from tracer.model.filter import Filter
from tracer.model.packet import Packet
from tracer.util.lru_dict import LruDict

if TYPE_CHECKING:
    from tracer.kube.watch import ObjectWatch

PATIENCE = 10.0
"""Maximum wait for the API if an option names an object, s. Nothing else waits for the API."""
NAMED = "--service, --pod, --namespace, --workload, -l, and names in --src and --dst"
"""The options that name objects."""
UNCHECKED = (
    "The kubeconfig {} has insecure-skip-tls-verify: the API server is not authenticated. An attacker on the network path can"
    " read the token and forge names."
)

LEFT_OUT = f"The CNI result cache has more than {MOST_FILES} files; the others are not read, so some pods have no names."

MOST_NOTES = 64
"""Maximum number of notes about missing objects that are kept, so that each is written once."""
FULL = f"Kubernetes' objects have more than {MOST_ENTRIES} addresses: they are not used, and names come from rules only."


@dataclass(frozen=True)
class ObjectSource:
    """The source of the objects.

    Attributes:
        objects: A file with the output of `kubectl get -o json`; "" = none.
        kubeconfig: A kubeconfig; "" = the usual places.
        none: Use no objects.
    """

    objects: str = ""
    kubeconfig: str = ""
    none: bool = False
    known: Callable[[], ClusterView] = ClusterView.of_machine
    """Makes the cluster view."""
    replayed: bool = False
    """The objects come from a capture; the API is not used."""


class OwnerResolver:
    """Finds names and owners for one run. Created before anything is attached; raises NoObjects for unusable files."""

    def __init__(self, source: ObjectSource, words: Selectors, base: Filter) -> None:
        if words.has_either_end and (base.ports or base.hosts):
            raise BadOption(selectors.NOT_COMBINED)
        if source.none and not source.replayed and words.need_names:
            raise BadOption(f"{NAMED} need Kubernetes' objects: leave --no-kube out.")
        if bool(source.objects) + bool(source.kubeconfig) + source.none > 1:
            raise BadOption("--objects, --kubeconfig and --no-kube exclude each other.")
        self.selectors, self._base = words, base
        self.cluster = source.known()
        self._selected = RenewedFilter(0, frozenset(), base)
        self.current = base
        self._changed = threading.Event()
        self._watch: ObjectWatch | None = None
        self._renewal: FilterRenewal | None = None
        self._history = FilterHistory()
        self._notes: list[str] = []
        self._said: LruDict[str, None] = LruDict(MOST_NOTES, "notes about missing objects")
        self._left_out = self._is_full_noted = False
        if source.objects:
            bodies = objects.read(source.objects)
            self.cluster.store.load(bodies)
            self._notes += filter(None, (objects.note_of_other_policies(bodies),))
            self.cluster.store.node = node_name.name_of_node(self.cluster.store, self.cluster.local)
        elif not source.none:
            access = self._access(source)
            if access and access.unchecked:
                self._notes.append(UNCHECKED.format(access.source))
            if access:
                from tracer.kube.watch import ObjectWatch

                self._watch = ObjectWatch(
                    access, self.cluster.store, lambda store: node_name.name_of_node(store, self.cluster.local)
                )
                self._renewal = FilterRenewal(words, base, self.cluster) if words else None
            elif words.need_names:
                raise NoObjects(f"{NAMED} need Kubernetes' objects: give --kubeconfig FILE or --objects FILE.")
        self._have_all = bool(source.objects)
        if self._have_all:
            self._check()

    def _access(self, source: ObjectSource) -> ApiAccess | None:
        """Returns the access to the API. An unusable file causes only a note if no option needs it."""
        try:
            return kubeconfig.find(source.kubeconfig or None)
        except NoObjects as e:
            if source.kubeconfig or self.selectors.need_names:
                raise
            self._notes.append(f"{e} Names come from rules only.")
            return None

    def start(self) -> None:
        """Starts watching the API. Waits for it only if an option names an object. Raises NoObjects, NoSuchObject."""
        self.cluster.store.on_change(self._changed.set)
        if self._watch:
            self._watch.start()
            if self.selectors.need_names:
                self._have_all = self._watch.wait(PATIENCE)
                if not self._have_all or self._watch.troubled:
                    why = self._watch.troubled or f"The Kubernetes API has not answered within {PATIENCE:.0f} s."
                    self._watch.close()
                    raise NoObjects(f"{NAMED} need the Kubernetes API. {why}")
                try:
                    self._check()
                except (NoObjects, NoSuchObject):
                    self._watch.close()
                    raise

    def _check(self) -> None:
        """Raises NoSuchObject, NoObjects if an object of the options does not exist, or may exist unnoticed."""
        if self.cluster.store.is_full and self.selectors.need_names:
            raise NoObjects(FULL)
        selectors.check(self.selectors, self.cluster)

    def filter(self) -> Filter:
        """Computes the filter for the kernel, and stores it as `current`."""
        if self.selectors and not (self.cluster.store.is_full and self._has_ends):
            ends, directed = selectors.ends(self.selectors, self.cluster), selectors.directed_ends(self.selectors, self.cluster)
            wanted = ends if self.selectors.has_either_end else None
            self.current = selected_ends.kernel_filter(self._base, wanted, self.cluster, directed)
            self._selected = RenewedFilter(0, ends, self.current, directed)
        return self.current

    @property
    def _has_ends(self) -> bool:
        """Whether objects of the options were found so far."""
        directed = self._selected.directed
        return bool(self._selected.ends or directed.sources or directed.destinations)

    @property
    def is_one_sided(self) -> bool:
        """Whether the packets of one direction of a connection may be selected without those of the other one."""
        return self.current.is_one_sided or self.selectors.is_one_sided

    def attach(self, write: Callable[[Filter], None]) -> None:
        """The probes run. write: sets their filter, callable from any thread."""
        if self._renewal:
            self._renewal.attach(write)

    def detach(self) -> None:
        """The probes are about to end."""
        if self._renewal:
            self._renewal.detach()

    def renewals(self) -> list[RenewedFilter]:
        """Returns the filters that the probes got since the last call."""
        return self._renewal.read() if self._renewal else []

    def apply_filter(self, renewed: RenewedFilter) -> None:
        """Matches packets with this filter from its time on."""
        if renewed.since and renewed.filter != self.current:
            self._notes.append(sentence(self.current, renewed))
        self._history.add(renewed)
        self.current = renewed.filter

    @property
    def newest(self) -> Filter:
        """The current filter of the probes."""
        return (self._renewal.newest if self._renewal else None) or self.current

    def ports(self) -> tuple[int, ...]:
        """Returns the ports of all filters so far, including the newest; () = any."""
        if not self._history:
            return self.current.ports
        ports, newest = self._history.ports(), self.newest.ports
        return tuple(sorted({*ports, *newest})) if ports and newest else ()

    def new_filter(self) -> Filter | None:
        """Returns the filter to use from now on; None = unchanged, or renewed by FilterRenewal."""
        if not self.selectors or not self._changed.is_set():
            return None
        self._changed.clear()
        before = self.current
        new = before if self._history else self.filter()
        if not self._have_all and self._watch and self._watch.wait(0):
            self._have_all = True
        if self._have_all and not self.cluster.store.is_full:
            self._miss()
        return new if new != before else None

    def _miss(self) -> None:
        """Notes once that a requested object does not exist, or no longer exists."""
        try:
            selectors.check(self.selectors, self.cluster)
            self._said.clear()
        except NoSuchObject as e:
            if str(e) not in self._said:
                self._said[str(e)] = None
                self._notes.append(str(e))

    def settle(self) -> None:
        """Waits for the objects, at most PATIENCE seconds. The watch itself notes what the API refuses."""
        if self._watch:
            self._have_all = self._watch.wait(PATIENCE)
            if not self._have_all and not self._watch.troubled:
                self._notes.append(f"The Kubernetes API has not answered within {PATIENCE:.0f} s: names come from rules only.")

    def wants(self, packet: Packet) -> bool:
        """Whether the packet matches the selectors. The kernel's filter lets some others pass, too."""
        if not self.selectors:
            return True
        held = self._history.at(packet.hops[0].time if packet.hops else 0) if self._history else [self._selected]
        has_either = self.selectors.has_either_end
        return any(
            selected_ends.selects(packet, each.ends if has_either else None, each.directed, self.cluster) for each in held
        )

    def attribute(self, packet: Packet) -> Packet:
        """The packet with its owners."""
        return attribute(packet, self.cluster)

    def unchanged(self) -> AbstractContextManager[object]:
        """Returns a context manager; the objects do not change within its block."""
        return self.cluster.store.still()

    def notes(self) -> list[str]:
        """Returns the notes for the user since the last call, a sentence each."""
        if self.cluster.sandboxes.left_out and not self._left_out:
            self._left_out = True
            self._notes.append(LEFT_OUT)
        if self.cluster.store.is_full and not self._is_full_noted:
            self._is_full_noted = True
            self._notes.append(FULL)
        notes, self._notes = self._notes, []
        return notes + (self._watch.notes() if self._watch else [])

    def close(self) -> None:
        if self._watch:
            self._watch.close()

    def __enter__(self) -> OwnerResolver:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None) -> None:
        self.close()
