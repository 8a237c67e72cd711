# SPDX-License-Identifier: Apache-2.0
"""Wires a command together: kernel, journeys, output. Imported only when one runs, so that --help is quick."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from tracer import render
from tracer.capture.record.capture_files import RotationLimits
from tracer.capture.record.environment import RecordingEnvironment
from tracer.capture.record.output import RecordOutput
from tracer.capture.record.prefetch import Prefetcher
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
from tracer.packets.assembler import PacketAssembler
from tracer.packets.hop_builder import HopBuilder
from tracer.pipeline.child import end, start, write_ready
from tracer.pipeline.correlation import ConnectionStage
from tracer.pipeline.environment import Environment
from tracer.pipeline.exit_status import status
from tracer.pipeline.run import Run, RunLimits
from tracer.pipeline.shutdown import StopSignals
from tracer.pipeline.wiring import rules_of
from tracer.render.base import Output, hang_up
from tracer.rules.rule_resolver import RuleResolver

if TYPE_CHECKING:
    pass


def trace(
    cmd: Sequence[str],
    form: str,
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
    """One tracing run; returns the exit status. Raises TraceError before anything is attached if it cannot be done.

    target: the capture to write, sizes: its limits (ring, rotation in bytes, in seconds); record_only: nothing is explained
    meanwhile. snaplen: bytes of each packet that are recorded. redact: other addresses and names are.
    """
    redacted = RecordRedactor() if redact else None
    recording = RecordingEnvironment(target, RotationLimits(*(size or 0 for size in sizes)), redacted) if target else None
    parts: Environment = recording or Environment()
    with ExitStack() as stack:
        stack.callback(parts.close)
        kube = _kube(options, parts)
        require_tracing()
        kernel = Kernel.running()
        output = RecordOutput(recording.files.names) if recording and record_only else render.find(form)(verbose=verbose)
        output.recorded = recording is not None
        full = doctor.gather() if verbose or form == "json" or recording else []
        give_up(tuple(BITS))
        stack.enter_context(kube)
        probes = Session(kernel, kube.filter(), verbose, only=attach, rules=not no_rules, snaplen=snaplen or 0)
        session = stack.enter_context(probes)
        give_up()
        job = TraceRequest(_said(sys.argv[1:]), count, duration, no_rules, verbose, record_only, follow)
        stop, command = StopSignals(), None
        try:
            run = prepare(stack, kernel, session, kube, parts, output, job, full)
            facts = corrected(full, session.refused) if verbose or form == "json" else few(session)
            output.begin(facts, job.said, kernel.release)
            if ready_file:
                write_ready(ready_file, os.getpid())
            run.begin()
            command = start(cmd) if cmd else None
            run.trace(stop, command)
            for note in parts.close(run.summary.seconds):
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
    """What a run is to do, beside its filter. said: the options as they were typed."""

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
    parts: Environment,
    output: Output,
    job: TraceRequest,
    full: list[CheckResult],
) -> Run:
    """A run on attached probes, and its recording begun if it has one. full: what the doctor says, for the recording."""
    spaces, processes, node = parts.namespaces(), parts.processes(), parts.node()
    rules = RuleResolver() if job.no_rules else rules_of(session, spaces, stack, parts)
    reasons, tracked, clock = kernel.drop_reasons(), tracking(), time.time_ns() - time.monotonic_ns()
    function = parts.function(kernel.symbols.containing)
    assembler = PacketAssembler(HopBuilder(spaces, processes, reasons, function), clock, tracked, rules=rules)
    if job.record_only and isinstance(parts, RecordingEnvironment):
        assembler = Prefetcher(spaces, processes, function, rules, node, parts.sandboxes, parts.inspector(spaces, processes))
    limits = RunLimits(job.count, job.duration, kube.current.drops_only)
    if isinstance(parts, RecordingEnvironment):
        facts = {"full": corrected(full, session.refused), "missed": few(session)}
        told = asdict(job) | {"drops_only": limits.drops_only, "words": asdict(kube.selectors)}
        parts.start(session, kube, spaces, kernel.release, clock, reasons, tracked, facts, told)
    findings, changes = Findings(FindingContext(kube.cluster, node)), parts.changes()
    rules.replaced = changes.rules
    kube.cluster.store.on_apply(changes.applied)
    kube.cluster.store.on_change(changes.objects)
    syns = HandshakeAnalyzer(parts.inspector(spaces, processes), clock, limits.drops_only)
    connections = ConnectionTracker(clock) if job.follow else None
    following = stack.enter_context(ConnectionStage(syns, connections, changes, findings, limits.drops_only, parts.entries()))
    source = parts.source(session, kube)
    stack.callback(kube.detach)
    return Run(source, assembler, output, limits, kube, findings, following)


def _kube(options: dict[str, Any], parts: Environment) -> OwnerResolver:
    """Takes the options that speak of Kubernetes out of the others, which make the filter."""
    source = ObjectSource(
        options.pop("objects") or "", options.pop("kubeconfig") or "", options.pop("no_kube"), parts.cluster_view
    )
    words = Selectors(*(options.pop(name) for name in ("services", "pods", "node_ports", "host_ports")))
    return OwnerResolver(source, words, filter_options.wanted(**options))


def few(session: Session) -> list[CheckResult]:
    """What the user is told of a run that has not asked for more."""
    return [*doctor.lacking(held()), *missed(session.refused)]


def missed(refused: Sequence[UnavailableProbe]) -> list[CheckResult]:
    """What this run cannot tell. A module that is not loaded has nothing to tell, so it is not worth a line."""
    return [
        CheckResult(r.probe.name, "degraded", f"no {r.probe.tells}: {r.why}") for r in refused if "is not loaded" not in r.why
    ]


def corrected(full: Sequence[CheckResult], refused: Sequence[UnavailableProbe]) -> list[CheckResult]:
    """What the doctor said before the probes were on, and what the kernel, or lacking rights, refused since."""
    since = {f"probe {fact.subject}": fact for fact in missed(refused)}
    return [replace(since[f.subject], subject=f.subject) if f.state == "ok" and f.subject in since else f for f in full]


def _said(arguments: Sequence[str]) -> str:
    """The options as they were typed, without the command after `--` and the file for whoever waits."""
    words = iter(arguments)
    kept = []
    for word in words:
        if word == "--":
            break
        if word == "--ready-file":
            next(words, None)
        elif not word.startswith("--ready-file="):
            kept.append(word)
    return " ".join(kept)
