# SPDX-License-Identifier: Apache-2.0
"""What a run asks: the machine that it traces, or a capture of one.

A live run asks the machine (live_environment.py). A recording asks the machine and writes the answers to a capture
(tracer/capture/record/environment.py). A replay asks the capture (tracer/capture/replay/environment.py). All objects of a run
that give answers are made here, and builder.py puts them together.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Protocol

from tracer.connections.change_log import ChangeSource
from tracer.connections.conntrack_events import ConntrackListener
from tracer.kernel.session import Kernel, Session
from tracer.kube.catalog import ClusterView
from tracer.kube.owner_resolver import OwnerResolver
from tracer.model.check import CheckResult
from tracer.model.summary import OutputLoss
from tracer.node.namespace_questions import NamespaceInspector
from tracer.node.namespaces import NamespaceNames
from tracer.node.node import HostReader
from tracer.node.processes import SocketOwners
from tracer.packets.program_drops import AttachedPrograms
from tracer.pipeline.assembly import Assembler, AssemblyParts, KernelNames
from tracer.pipeline.source import EventSource
from tracer.rules.rule_resolver import RuleResolver
from tracer.util.questions import Journal


class Environment(Protocol):
    """Makes what a run asks. Each method is called once in a run."""

    def cluster_view(self) -> ClusterView:
        """Kubernetes objects and addresses, used to find names and owners."""
        ...

    def clock(self) -> int:
        """ns to add to CLOCK_MONOTONIC to get ns since the epoch."""
        ...

    def kernel_names(self) -> KernelNames:
        """Names of the kernel's numbers."""
        ...

    def namespaces(self) -> NamespaceNames:
        """Names of network namespaces."""
        ...

    def tracking(self) -> Collection[int]:
        """Inodes of the namespaces known to track connections."""
        ...

    def processes(self) -> SocketOwners:
        """Owners of sockets."""
        ...

    def inspector(self, namespaces: NamespaceNames, processes: SocketOwners) -> NamespaceInspector:
        """Answers what SYN verdicts need to know about network namespaces."""
        ...

    def host_reader(self) -> HostReader:
        """Reads what findings need to know about the node."""
        ...

    def journal(self) -> Journal:
        """Answers the questions of findings."""
        ...

    def rules(self, namespaces: NamespaceNames, stack: ExitStack) -> RuleResolver:
        """Finds the rules that packets met, until the stack unwinds."""
        ...

    def programs(self, stack: ExitStack) -> AttachedPrograms:
        """Finds the eBPF programs at interfaces, until the stack unwinds. They are read before this returns."""
        ...

    def change_log(self) -> ChangeSource:
        """Collects replacements of rule tables and objects during the run."""
        ...

    def conntrack_listener(self) -> ConntrackListener:
        """Listens to events of conntrack entries."""
        ...

    def assembler(self, parts: AssemblyParts) -> Assembler:
        """Makes packets out of events."""
        ...

    def source(self, kube: OwnerResolver) -> EventSource:
        """The source of batches."""
        ...


@dataclass(frozen=True)
class RunStart:
    """What is known when a run on attached probes is built.

    Attributes:
        kube: Current filter and addresses.
        parts: What the run asks.
        results: Results of `doctor`, by amount: "full", "missed".
        options: Options of the run.
    """

    kube: OwnerResolver
    parts: AssemblyParts
    results: Mapping[str, list[CheckResult]]
    options: Mapping[str, Any]


class TracingEnvironment(Environment, Protocol):
    """The environment of a run on attached probes."""

    def attach(self, kernel: Kernel, session: Session) -> None:
        """The probes are attached. Before this call only `cluster_view` can be used."""

    def start(self, run: RunStart) -> None:
        """The run is built; called once, before the first batch."""

    def close(self, seconds: float | None = None) -> list[str]:
        """Ends the run.

        Args:
            seconds: duration of the run; None when it was cut short.

        Returns:
            Messages for the user.
        """
        ...

    def not_written(self) -> list[OutputLoss]:
        """What could not be recorded; valid after `close`."""
        ...
