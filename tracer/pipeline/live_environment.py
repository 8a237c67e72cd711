# SPDX-License-Identifier: Apache-2.0
"""The environment of a run that asks this machine."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from contextlib import ExitStack

from tracer.connections.change_log import ChangeLog
from tracer.connections.conntrack_events import ConntrackListener, EntryEvents
from tracer.kernel.attach_plan import UnavailableProbe
from tracer.kernel.late_modules import LateModules
from tracer.kernel.program_watcher import ProgramWatcher
from tracer.kernel.session import Kernel, Session
from tracer.kube.catalog import ClusterView
from tracer.kube.owner_resolver import OwnerResolver
from tracer.model.summary import OutputLoss
from tracer.node import namespaces as node_namespaces
from tracer.node.namespace_questions import NamespaceInspector
from tracer.node.namespace_view import NamespaceReader
from tracer.node.namespaces import NamespaceNames, Namespaces
from tracer.node.node import HostReader
from tracer.node.processes import Processes, SocketOwners
from tracer.packets.program_drops import AttachedPrograms
from tracer.pipeline.answer_period import AnswerPeriod
from tracer.pipeline.assembly import Assembler, AssemblyParts, KernelNames, packet_assembler
from tracer.pipeline.budget_keeper import BudgetKeeper
from tracer.pipeline.environment import RunStart
from tracer.pipeline.live_source import LiveSource
from tracer.pipeline.reader_budget import BudgetLimits
from tracer.rules import live_resolver
from tracer.rules.iptables.table_reader import TableReader
from tracer.rules.nftables.snapshot_cache import UpdateSource
from tracer.rules.rule_resolver import RuleResolver
from tracer.util.questions import Journal, live


class LiveEnvironment:
    """Asks this machine and this kernel.

    Args:
        limits: What the run may use; None = no limit.

    Attributes:
        kernel: The running kernel.
        session: The attached probes.
    """

    kernel: Kernel
    session: Session

    def __init__(self, limits: BudgetLimits | None = None) -> None:
        self._limits, self._period = limits, AnswerPeriod()

    def attach(self, kernel: Kernel, session: Session) -> None:
        self.kernel, self.session = kernel, session

    def cluster_view(self) -> ClusterView:
        return ClusterView.of_machine()

    def clock(self) -> int:
        return time.time_ns() - time.monotonic_ns()

    def kernel_names(self) -> KernelNames:
        return KernelNames(self.kernel.symbols.containing, self.kernel.drop_reasons())

    def namespaces(self) -> Namespaces:
        return Namespaces()

    def tracking(self) -> Collection[int]:
        return node_namespaces.tracking()

    def processes(self) -> Processes:
        return Processes()

    def inspector(self, namespaces: NamespaceNames, processes: SocketOwners) -> NamespaceInspector:
        return NamespaceInspector(NamespaceReader(namespaces, processes))

    def host_reader(self) -> HostReader:
        return HostReader()

    def journal(self) -> Journal:
        return live

    def rules(self, namespaces: NamespaceNames, stack: ExitStack) -> RuleResolver:
        return rule_resolver(self.session, namespaces, stack)

    def programs(self, stack: ExitStack) -> AttachedPrograms:
        is_expecting = any(row.probe.programs for row in self.session.planned)
        return stack.enter_context(ProgramWatcher(is_expecting=is_expecting))

    def change_log(self) -> ChangeLog:
        return ChangeLog()

    def conntrack_listener(self) -> ConntrackListener:
        return EntryEvents()

    def assembler(self, parts: AssemblyParts) -> Assembler:
        return packet_assembler(self._period.hold(parts), version=lambda: self._period.number)

    def source(self, kube: OwnerResolver) -> LiveSource:
        return LiveSource(self.session, kube, self.budget(), self._period)

    def budget(self) -> BudgetKeeper | None:
        """What limits the reading of the probes; None = nothing."""
        return BudgetKeeper(self._limits, self.session.set_detail) if self._limits else None

    def start(self, run: RunStart) -> None:
        """Nothing begins with the run."""

    def close(self, seconds: float | None = None) -> list[str]:
        return []

    def not_written(self) -> list[OutputLoss]:
        return []


def rule_resolver(
    session: Session,
    namespaces: NamespaceNames,
    stack: ExitStack,
    reader: Callable[[], TableReader] = TableReader,
    wrap: Callable[[UpdateSource], UpdateSource] = lambda updates: updates,
) -> RuleResolver:
    """The resolver of rules on this machine, until the stack unwinds.

    Args:
        session: The attached probes.
        namespaces: Names of network namespaces.
        stack: Closes what is opened here.
        reader: Makes the reader of legacy tables.
        wrap: Wraps the reader of nftables.
    """
    nft_probe = next((row.probe for row in session.planned if row.probe.name == "nft_rule"), None)
    watching = live_resolver.watching(namespaces, session.extensions, nft_probe is not None, reader, wrap)
    resolver, reason = stack.enter_context(watching)
    if nft_probe and reason:
        session.refused.append(UnavailableProbe(nft_probe, reason))
    stack.enter_context(LateModules(session.refused))
    return resolver
