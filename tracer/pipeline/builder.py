# SPDX-License-Identifier: Apache-2.0
"""Builds a run: trace, record, `explain --live`, and every command that reads a capture."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field

from tracer.connections.tracker import ConnectionTracker
from tracer.findings import Findings
from tracer.findings.context import FindingContext
from tracer.handshakes.analyzer import HandshakeAnalyzer
from tracer.kube.owner_resolver import OwnerResolver
from tracer.model.summary import RunSummary
from tracer.pipeline.assembly import AssemblyParts
from tracer.pipeline.connection_number_stage import ConnectionNumberStage
from tracer.pipeline.connection_stage import ConnectionStage
from tracer.pipeline.display_stage import DisplayStage
from tracer.pipeline.environment import Environment
from tracer.pipeline.finding_stage import FindingStage
from tracer.pipeline.owner_stage import OwnerStage
from tracer.pipeline.run import Run
from tracer.pipeline.selection_stage import SelectionStage
from tracer.pipeline.source import RunLimits
from tracer.pipeline.stage import Stage
from tracer.pipeline.status_stage import StatusStage
from tracer.render.base import Output
from tracer.rules.rule_resolver import RuleResolver
from tracer.selection.display_filter import DisplayFilter
from tracer.util.status_line import StatusLine


@dataclass(frozen=True)
class RunOptions:
    """What a run does with its packets.

    Attributes:
        limits: when the run ends by itself.
        has_rules: the rules that packets met are resolved.
        by_connection: timelines of connections are printed instead of packets.
        numbers_connections: each packet has the number of its connection, and the output gets each connection once.
        drops_only: only what went wrong is printed and counted.
        quiet: only what went wrong is printed; all is counted.
        gives_all_syns: the output gets the verdict of each SYN, and each timeline, also with `drops_only` and `quiet`.
        is_partial: the probes report only packets that went wrong, so the last ACK of a handshake may be missing.
        is_one_sided: the packets of one direction may be selected without those of the other, so answers may be missing.
        is_judged: SYN verdicts, timelines and findings are made; False: packets are only attributed and printed.
        filters: what user space evaluates; a packet is selected when all of them select it.
        is_explained: packets are explained; False: they are only recorded.
        status: shows what the run has seen so far; None = nothing does.
    """

    limits: RunLimits = field(default_factory=RunLimits)
    has_rules: bool = True
    by_connection: bool = False
    numbers_connections: bool = False
    drops_only: bool = False
    quiet: bool = False
    gives_all_syns: bool = False
    is_partial: bool = False
    is_one_sided: bool = False
    is_judged: bool = True
    filters: tuple[DisplayFilter, ...] = ()
    is_explained: bool = True
    status: StatusLine | None = None


@dataclass(frozen=True)
class BuiltRun:
    """A run, and what it asks its host."""

    run: Run
    parts: AssemblyParts


def build(environment: Environment, kube: OwnerResolver, output: Output, options: RunOptions, stack: ExitStack) -> BuiltRun:
    """Builds a run.

    Args:
        environment: makes what the run asks.
        kube: resolves owners; made from `environment.cluster_view`.
        output: where packets, findings and notes are written.
        options: what the run does with its packets.
        stack: closes what is opened here.
    """
    namespaces, processes = environment.namespaces(), environment.processes()
    parts = AssemblyParts(
        namespaces,
        processes,
        environment.inspector(namespaces, processes),
        environment.host_reader(),
        environment.journal(),
        environment.rules(namespaces, stack) if options.has_rules else RuleResolver(),
        environment.kernel_names(),
        environment.clock(),
        environment.tracking(),
        environment.programs(stack),
    )
    output.set_clock(parts.clock)
    assembler = environment.assembler(parts)
    judging = _judging_stages(environment, parts, kube, options) if options.is_judged else []
    source, summary = environment.source(kube), RunSummary()
    stack.callback(kube.detach)
    stages: list[Stage] = [StatusStage(summary, options.status, options.is_explained)] if options.status else []
    filters = [each for each in options.filters if each != DisplayFilter()]
    stages += [SelectionStage(filters)] if filters else []
    stages.append(OwnerStage(kube, source))
    stages += [ConnectionNumberStage(parts.clock)] if options.numbers_connections else []
    stages += [DisplayStage(summary, options.drops_only, options.by_connection, options.quiet), *judging]
    for stage in stages:
        stack.callback(stage.close)
    return BuiltRun(Run(source, assembler, stages, output, options.limits, summary), parts)


def _judging_stages(environment: Environment, parts: AssemblyParts, kube: OwnerResolver, options: RunOptions) -> list[Stage]:
    """The stages that conclude something from packets: SYN verdicts, timelines, findings."""
    changes = environment.change_log()
    changes.connect(parts.rules, kube.cluster.store)
    findings = Findings(FindingContext(kube.cluster, parts.node, parts.journal))
    handshakes = HandshakeAnalyzer(parts.inspector, parts.clock, options.is_partial, options.is_one_sided)
    connections = ConnectionTracker(parts.clock) if options.by_connection else None
    conntrack = environment.conntrack_listener()
    failures_only = (options.drops_only or options.quiet) and not options.gives_all_syns
    return [
        ConnectionStage(handshakes, connections, changes, findings, failures_only, conntrack, parts.namespaces.own_name),
        FindingStage(findings),
    ]
