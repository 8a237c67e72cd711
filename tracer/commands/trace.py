# SPDX-License-Identifier: Apache-2.0
"""The commands `trace` and `record`: connects kernel, packet assembly and output.

Imported only when one of them runs, so that --help is fast.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from typing import Any

from tracer.capture.record.capture_files import RotationLimits
from tracer.capture.record.environment import RecordingEnvironment
from tracer.capture.record.output import RecordOutput
from tracer.capture.redact.records import RecordRedactor
from tracer.commands import doctor, filter_options
from tracer.connections.tracker import ConnectionTracker
from tracer.findings import Findings
from tracer.findings.context import FindingContext
from tracer.handshakes.analyzer import HandshakeAnalyzer
from tracer.kernel.attach_plan import UnavailableProbe
from tracer.kernel.session import Kernel, Session
from tracer.kube.owner_resolver import ObjectSource, OwnerResolver
from tracer.kube.selectors import Selectors
from tracer.model.check import CheckResult
from tracer.node.capabilities import BITS, give_up, held, require_tracing
from tracer.node.namespaces import tracking
from tracer.pipeline import sinks
from tracer.pipeline.assembly import AssemblyParts
from tracer.pipeline.child import end, start, write_ready
from tracer.pipeline.connection_stage import ConnectionStage
from tracer.pipeline.environment import Environment, LiveEnvironment, RunStart
from tracer.pipeline.exit_status import status
from tracer.pipeline.run import Run, RunLimits
from tracer.pipeline.shutdown import StopSignals
from tracer.pipeline.sinks import OutputSpec
from tracer.pipeline.wiring import rule_resolver
from tracer.render.base import Output, hang_up
from tracer.rules.rule_resolver import RuleResolver


def trace(
    cmd: Sequence[str],
    outputs: Sequence[OutputSpec],
    verbose: bool,
    attach: str,
    count: int,
    duration: float,
    ready_file: str | None,
    no_rules: bool = False,
    follow: bool = False,
    target: str | None = None,
    sizes: Sequence[Any] = (),
    record_only: bool = False,
    snaplen: int | None = None,
    redact: bool = False,
    **options: Any,
) -> int:
    """Runs one trace; returns the exit status.

    Args:
        cmd: The program to run and its arguments; empty = none.
        outputs: Where packets are written, and in which formats.
        target: The capture to write; None = none.
        sizes: Limits of the capture: ring buffer in bytes, rotation in bytes, rotation in seconds; None = no limit.
        record_only: Record without explaining.
        snaplen: Bytes recorded of each packet; None = none.
        redact: Record replacements of addresses and names.

    Raises:
        TraceError: The run is impossible. It is raised before anything is attached.
    """
    redacted = RecordRedactor() if redact else None
    limits = RotationLimits(*(size or 0 for size in sizes))
    recording = RecordingEnvironment(target, limits, redacted, explains=not record_only) if target else None
    environment: Environment = recording or LiveEnvironment()
    with ExitStack() as stack:
        stack.callback(environment.close)
        kube = _kube(options, environment)
        require_tracing()
        kernel = Kernel.running()
        output = (
            RecordOutput(recording.files.names)
            if recording and record_only
            else stack.enter_context(sinks.opened(outputs, verbose, recorded=recording is not None))
        )
        all_results = doctor.gather() if recording or any(each.shows_all_results for each in output.outputs()) else []
        give_up(tuple(BITS))
        stack.enter_context(kube)
        probes = Session(kernel, kube.filter(), verbose, only=attach, rules=not no_rules, snaplen=snaplen or 0)
        session = stack.enter_context(probes)
        give_up()
        request = TraceRequest(_options_text(sys.argv[1:]), count, duration, no_rules, verbose, record_only, follow)
        stop, command = StopSignals(), None
        try:
            run = prepare(stack, kernel, session, kube, environment, output, request, all_results)
            for each in output.outputs():
                results = corrected(all_results, session.refused) if each.shows_all_results else limitations(session)
                each.begin(results, request.said, kernel.release)
            if ready_file:
                write_ready(ready_file, os.getpid())
            run.begin()
            command = start(cmd) if cmd else None
            run.trace(stop, command)
            for note in environment.close(run.summary.seconds):
                output.note(note)
            output.summary(run.summary)
        except BrokenPipeError:
            hang_up(sys.stdout)
            return 0
        finally:
            end(command)
            stop.restore()
    return status(run.summary, bool(cmd))


@dataclass(frozen=True)
class TraceRequest:
    """The options of a run, without its filter. Stored in a capture.

    Attributes:
        said: The options as typed.
        count: Stop after this many packets; 0 = no limit.
        duration: Stop after this time, s; 0 = no limit.
    """

    said: str = ""
    count: int = 0
    duration: float = 0
    no_rules: bool = False
    verbose: bool = False
    record_only: bool = False
    follow: bool = False


def prepare(
    stack: ExitStack,
    kernel: Kernel,
    session: Session,
    kube: OwnerResolver,
    environment: Environment,
    output: Output,
    request: TraceRequest,
    all_results: list[CheckResult],
) -> Run:
    """Makes a run on attached probes, and starts its recording if there is one.

    Args:
        all_results: The results of `doctor`, for the recording.
    """
    namespaces, processes, node = environment.namespaces(), environment.processes(), environment.host_reader()
    rules = RuleResolver() if request.no_rules else rule_resolver(session, namespaces, stack, environment)
    clock = time.time_ns() - time.monotonic_ns()
    function = environment.symbol_lookup(kernel.symbols.containing)
    parts = AssemblyParts(namespaces, processes, node, rules, function, kernel.drop_reasons(), clock, tracking())
    assembler = environment.assembler(parts)
    limits = RunLimits(request.count, request.duration, kube.current.drops_only)
    results = {"full": corrected(all_results, session.refused), "missed": limitations(session)}
    request_fields = asdict(request) | {"drops_only": limits.drops_only, "words": asdict(kube.selectors)}
    environment.start(RunStart(session, kube, parts, kernel.release, results, request_fields))
    findings, changes = Findings(FindingContext(kube.cluster, node, environment.journal())), environment.change_log()
    rules.replaced = changes.add_rule_change
    kube.cluster.store.on_apply(changes.begin_object_change)
    kube.cluster.store.on_change(changes.add_object_change)
    handshakes = HandshakeAnalyzer(environment.inspector(namespaces, processes), clock, limits.drops_only)
    connections = ConnectionTracker(clock) if request.follow else None
    connection_stage = stack.enter_context(
        ConnectionStage(handshakes, connections, changes, findings, limits.drops_only, environment.conntrack_listener())
    )
    source = environment.source(session, kube)
    stack.callback(kube.detach)
    return Run(source, assembler, output, limits, kube, findings, connection_stage)


def _kube(options: dict[str, Any], environment: Environment) -> OwnerResolver:
    """Removes the Kubernetes options from `options`; the remaining ones make the filter."""
    source = ObjectSource(
        options.pop("objects") or "", options.pop("kubeconfig") or "", options.pop("no_kube"), environment.cluster_view
    )
    selectors = Selectors(*(options.pop(name) for name in ("services", "pods", "node_ports", "host_ports")))
    return OwnerResolver(source, selectors, filter_options.packet_filter(**options))


def limitations(session: Session) -> list[CheckResult]:
    """Returns what this run cannot show. Printed without --verbose."""
    return [*doctor.lacking(held()), *unavailable_probes(session.refused)]


def unavailable_probes(refused: Sequence[UnavailableProbe]) -> list[CheckResult]:
    """Returns a result for each probe that could not attach, except for probes of modules that are not loaded."""
    return [
        CheckResult(r.probe.name, "degraded", f"no {r.probe.shows}: {r.why}") for r in refused if "is not loaded" not in r.why
    ]


def corrected(all_results: Sequence[CheckResult], refused: Sequence[UnavailableProbe]) -> list[CheckResult]:
    """Returns the results of `doctor`, corrected by the probes that failed to attach afterwards."""
    since = {f"probe {fact.subject}": fact for fact in unavailable_probes(refused)}
    return [replace(since[f.subject], subject=f.subject) if f.state == "ok" and f.subject in since else f for f in all_results]


def _options_text(arguments: Sequence[str]) -> str:
    """Returns the options as typed, without --ready-file and without the command after `--`."""
    remaining = iter(arguments)
    kept = []
    for word in remaining:
        if word == "--":
            break
        if word == "--ready-file":
            next(remaining, None)
        elif not word.startswith("--ready-file="):
            kept.append(word)
    return " ".join(kept)
