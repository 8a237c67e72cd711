# SPDX-License-Identifier: Apache-2.0
"""The parts of a run that ask the live machine, made here and nowhere else.

`Environment` makes the live ones. A recording makes the same with a tape behind them (tracer/capture/record/environment.py),
a replay
makes those that answer from the tape (tracer/capture/replay/environment.py).
"""

from __future__ import annotations

from collections.abc import Callable

from tracer.connections.change_log import ChangeLog
from tracer.connections.conntrack_events import ConntrackListener, EntryEvents
from tracer.kernel.session import Session
from tracer.kube.catalog import ClusterView
from tracer.kube.cni_cache import CniCache
from tracer.kube.owner_resolver import OwnerResolver
from tracer.kube.store import ObjectStore
from tracer.node import addresses
from tracer.node.namespace_view import NamespaceInspector
from tracer.node.namespaces import Namespaces
from tracer.node.node import HostReader
from tracer.node.processes import Processes
from tracer.pipeline.live_source import LiveSource
from tracer.rules.iptables.table_reader import TableReader
from tracer.rules.nftables.snapshot_cache import UpdateSource


class Environment:
    """Those of a run that nobody records."""

    def cluster_view(self) -> ClusterView:
        """What names of Kubernetes are found with."""
        return ClusterView(ObjectStore(), CniCache(), addresses.local_addresses(), addresses.ipvs_addresses())

    def namespaces(self) -> Namespaces:
        return Namespaces()

    def processes(self) -> Processes:
        return Processes()

    def spaces(self, namespaces: Namespaces, processes: Processes) -> NamespaceInspector:
        """What verdicts on SYNs ask of namespaces."""
        return NamespaceInspector(namespaces, processes)

    def function(self, symbols: Callable[[int], str]) -> Callable[[int], str]:
        """The kernel function that an address lies in."""
        return symbols

    def node(self) -> HostReader:
        """What findings ask of the node."""
        return HostReader()

    def reader(self) -> TableReader:
        """Reads legacy tables."""
        return TableReader()

    def watch(self, watch: UpdateSource) -> UpdateSource:
        """Reads nftables' rules."""
        return watch

    def changes(self) -> ChangeLog:
        """Takes what is replaced meanwhile: tables of rules, objects."""
        return ChangeLog()

    def entries(self) -> ConntrackListener:
        """What is heard of conntrack's entries."""
        return EntryEvents()

    def source(self, session: Session, kube: OwnerResolver) -> LiveSource:
        """Gives the turns."""
        return LiveSource(session, kube)

    def close(self, seconds: float | None = None) -> list[str]:
        """The run is over. seconds: how long it took, None when it was cut short. Returns what the user should be told."""
        return []
