# SPDX-License-Identifier: Apache-2.0
"""The objects of a run that query the machine. They are created only here.

`Environment` creates the live ones. A recording creates the same ones with a record buffer attached
(tracer/capture/record/environment.py). A replay creates ones that answer from the capture
(tracer/capture/replay/environment.py).
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
    """The live objects of a run that is not recorded."""

    def cluster_view(self) -> ClusterView:
        """Kubernetes objects and addresses, used to find names and owners."""
        return ClusterView(ObjectStore(), CniCache(), addresses.local_addresses(), addresses.ipvs_addresses())

    def namespaces(self) -> Namespaces:
        return Namespaces()

    def processes(self) -> Processes:
        return Processes()

    def inspector(self, namespaces: Namespaces, processes: Processes) -> NamespaceInspector:
        """Answers what SYN verdicts need to know about network namespaces."""
        return NamespaceInspector(namespaces, processes)

    def symbol_lookup(self, symbols: Callable[[int], str]) -> Callable[[int], str]:
        """Returns a function that gives the kernel function at an address."""
        return symbols

    def host_reader(self) -> HostReader:
        """Answers what findings need to know about the node."""
        return HostReader()

    def table_reader(self) -> TableReader:
        """Reads legacy tables."""
        return TableReader()

    def update_source(self, watch: UpdateSource) -> UpdateSource:
        """Reads the rules of nftables."""
        return watch

    def change_log(self) -> ChangeLog:
        """Collects replacements of rule tables and objects during the run."""
        return ChangeLog()

    def conntrack_listener(self) -> ConntrackListener:
        """Listens to events of conntrack entries."""
        return EntryEvents()

    def source(self, session: Session, kube: OwnerResolver) -> LiveSource:
        """The source of batches."""
        return LiveSource(session, kube)

    def close(self, seconds: float | None = None) -> list[str]:
        """Ends the run.

        Args:
            seconds: duration of the run; None when it was cut short.

        Returns:
            Messages for the user.
        """
        return []
