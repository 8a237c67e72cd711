# SPDX-License-Identifier: Apache-2.0
"""The objects of a run that query the machine. They are created only here.

`LiveEnvironment` creates the live ones. A recording creates ones that also write their answers to a record buffer
(tracer/capture/record/environment.py). A replay creates ones that answer from the capture
(tracer/capture/replay/environment.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from tracer.connections.change_log import ChangeLog
from tracer.connections.conntrack_events import ConntrackListener, EntryEvents
from tracer.kernel.session import Session
from tracer.kube.catalog import ClusterView
from tracer.kube.cni_cache import CniCache
from tracer.kube.owner_resolver import OwnerResolver
from tracer.kube.store import ObjectStore
from tracer.model.check import CheckResult
from tracer.node import addresses
from tracer.node.namespace_questions import NamespaceInspector
from tracer.node.namespace_view import NamespaceReader
from tracer.node.namespaces import Namespaces
from tracer.node.node import HostReader
from tracer.node.processes import Processes
from tracer.packets.assembler import PacketAssembler
from tracer.packets.hop_builder import HopBuilder
from tracer.pipeline.assembly import Assembler, AssemblyParts
from tracer.pipeline.live_source import LiveSource
from tracer.rules.iptables.table_reader import TableReader
from tracer.rules.nftables.snapshot_cache import UpdateSource
from tracer.util.questions import Journal, live


@dataclass(frozen=True)
class RunStart:
    """What is known when the probes of a run are attached.

    Attributes:
        session: The attached probes.
        kube: Current filter and addresses.
        parts: What the assembler is made of.
        release: Kernel release.
        results: Results of `doctor`, by amount: "full", "missed".
        options: Options of the run.
    """

    session: Session
    kube: OwnerResolver
    parts: AssemblyParts
    release: str
    results: Mapping[str, list[CheckResult]]
    options: Mapping[str, Any]


class Environment(Protocol):
    """Creates what a run on attached probes needs."""

    def cluster_view(self) -> ClusterView:
        """Kubernetes objects and addresses, used to find names and owners."""
        ...

    def namespaces(self) -> Namespaces:
        """Names of network namespaces."""
        ...

    def processes(self) -> Processes:
        """Owners of sockets."""
        ...

    def inspector(self, namespaces: Namespaces, processes: Processes) -> NamespaceInspector:
        """Answers what SYN verdicts need to know about network namespaces."""
        ...

    def symbol_lookup(self, symbols: Callable[[int], str]) -> Callable[[int], str]:
        """Returns a function that gives the kernel function at an address."""
        ...

    def host_reader(self) -> HostReader:
        """Reads what findings need to know about the node."""
        ...

    def journal(self) -> Journal:
        """Answers the questions of findings."""
        ...

    def table_reader(self) -> TableReader:
        """Reads legacy tables."""
        ...

    def update_source(self, watch: UpdateSource) -> UpdateSource:
        """Reads the rules of nftables."""
        ...

    def change_log(self) -> ChangeLog:
        """Collects replacements of rule tables and objects during the run."""
        ...

    def conntrack_listener(self) -> ConntrackListener:
        """Listens to events of conntrack entries."""
        ...

    def assembler(self, parts: AssemblyParts) -> Assembler:
        """Makes packets out of events."""
        ...

    def start(self, run: RunStart) -> None:
        """The probes are attached; called once, before the first batch."""

    def source(self, session: Session, kube: OwnerResolver) -> LiveSource:
        """The source of batches."""
        ...

    def close(self, seconds: float | None = None) -> list[str]:
        """Ends the run.

        Args:
            seconds: duration of the run; None when it was cut short.

        Returns:
            Messages for the user.
        """
        ...


class LiveEnvironment:
    """The live objects of a run that is not recorded."""

    def cluster_view(self) -> ClusterView:
        return ClusterView(ObjectStore(), CniCache(), addresses.local_addresses(), addresses.ipvs_addresses())

    def namespaces(self) -> Namespaces:
        return Namespaces()

    def processes(self) -> Processes:
        return Processes()

    def inspector(self, namespaces: Namespaces, processes: Processes) -> NamespaceInspector:
        return NamespaceInspector(NamespaceReader(namespaces, processes))

    def symbol_lookup(self, symbols: Callable[[int], str]) -> Callable[[int], str]:
        return symbols

    def host_reader(self) -> HostReader:
        return HostReader()

    def journal(self) -> Journal:
        return live

    def table_reader(self) -> TableReader:
        return TableReader()

    def update_source(self, watch: UpdateSource) -> UpdateSource:
        return watch

    def change_log(self) -> ChangeLog:
        return ChangeLog()

    def conntrack_listener(self) -> ConntrackListener:
        return EntryEvents()

    def assembler(self, parts: AssemblyParts) -> Assembler:
        return packet_assembler(parts)

    def start(self, run: RunStart) -> None:
        """Nothing begins with the run."""

    def source(self, session: Session, kube: OwnerResolver) -> LiveSource:
        return LiveSource(session, kube)

    def close(self, seconds: float | None = None) -> list[str]:
        return []


def packet_assembler(parts: AssemblyParts) -> PacketAssembler:
    """The assembler of a run that explains its packets."""
    hops = HopBuilder(parts.namespaces, parts.processes, parts.drop_reasons, parts.function)
    return PacketAssembler(hops, parts.clock, parts.tracking, rules=parts.rules)
