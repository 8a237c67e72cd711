# SPDX-License-Identifier: Apache-2.0
"""The commands `trace` and `record`: connects kernel, packet assembly and output.

Imported only when one of them runs, so that --help is fast.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from tracer.commands import doctor
from tracer.commands.start_notes import StartNotes
from tracer.kernel.attach_plan import UnavailableProbe
from tracer.kernel.program_watcher import is_any_attached
from tracer.kernel.session import Announcements, Kernel, Session
from tracer.kube.owner_resolver import ObjectSource, OwnerResolver
from tracer.kube.selectors import Selectors
from tracer.model.check import CheckResult
from tracer.node.capabilities import BITS, give_up, held, require_tracing
from tracer.pipeline import builder, sinks
from tracer.pipeline.builder import RunOptions
from tracer.pipeline.child import end, start, write_ready
from tracer.pipeline.environment import RunStart, TracingEnvironment
from tracer.pipeline.exit_status import status
from tracer.pipeline.live_environment import LiveEnvironment
from tracer.pipeline.reader_budget import BudgetLimits
from tracer.pipeline.run import Run
from tracer.pipeline.shutdown import EXPLAINING, StopRequest, StopSignals
from tracer.pipeline.sinks import OutputSpec
from tracer.pipeline.source import RunLimits
from tracer.render.base import Output, hang_up
from tracer.selection import stored_filter
from tracer.selection.display_filter import DisplayFilter
from tracer.selection.filter_options import FilterOptions
from tracer.util import memory
from tracer.util.reading_progress import rules_read
from tracer.util.status_line import StatusLine, is_own

if TYPE_CHECKING:
    from tracer.capture.record.capture_files import CaptureTarget
    from tracer.capture.record.environment import RecordingEnvironment

_log = logging.getLogger(__name__)


def trace(
    cmd: Sequence[str],
    outputs: Sequence[OutputSpec],
    notes: StartNotes,
    verbose: bool,
    attach: str,
    count: int,
    duration: float,
    ready_file: str | None,
    no_rules: bool = False,
    follow: bool = False,
    quiet: bool = False,
    target: str | None = None,
    sizes: Sequence[Any] = (),
    record_only: bool = False,
    snaplen: int | None = None,
    redact: bool = False,
    view: AbstractContextManager[Output] | None = None,
    end_seconds: float | None = None,
    numbers_connections: bool = False,
    gives_all_syns: bool = False,
    drive: Callable[[Callable[[], int], StopRequest], int] = lambda complete, stop: complete(),
    capture: CaptureTarget | None = None,
    budget: BudgetLimits | None = None,
    **options: Any,
) -> int:
    """Runs one trace; returns the exit status.

    Args:
        cmd: The program to run and its arguments; empty = none.
        outputs: Where packets are written, and in which formats.
        notes: Says what the start does.
        quiet: Print only what went wrong. A recording has everything.
        target: The capture to write; None = none.
        sizes: Limits of the capture: ring buffer in bytes, rotation in bytes, rotation in seconds; None = no limit.
        record_only: Record without explaining.
        snaplen: Bytes recorded of each packet; None = none.
        redact: Record replacements of addresses and names.
        view: The output, opened by this run, which is the only one to write to a terminal; None = `outputs`.
        end_seconds: Maximum time that packets are explained after a request to end, s; None = that of all runs.
        numbers_connections: Each packet has the number of its connection.
        gives_all_syns: The output gets the verdict of each SYN, also with --drops-only.
        drive: Calls the run, from its first batch to the release of all that it holds, perhaps in another thread; returns its
            result. It also gets the request to end the run.
        capture: What takes the capture; None = files at `target`.
        budget: What the run may use; None = no limit.

    Raises:
        TraceError: The run is impossible. It is raised before anything is attached.
    """
    recording = _recording(target, sizes, redact, explains=not record_only, capture=capture, budget=budget) if target else None
    environment: TracingEnvironment = recording or LiveEnvironment(budget)
    line = notes.line if is_status_shown(notes.line, cmd) and view is None else None
    with ExitStack() as stack:
        stack.callback(environment.close)
        filters = FilterOptions.of(options)
        kube = _kube(options, environment, filters)
        live_filter = filters.live_filter()
        if live_filter.expression and not snaplen:
            live_filter.expression.require_recorded()
        require_tracing()
        notes.report("reading the kernel's types")
        kernel = Kernel.running()
        output = (
            _record_output(recording, line)
            if recording and record_only
            else stack.enter_context(view or sinks.opened(outputs, verbose, recorded=recording is not None, line=line))
        )
        needs_all = recording or any(each.shows_all_results for each in output.outputs())
        all_results = doctor.gather(load=None, kernel=kernel) if needs_all else []
        give_up(tuple(BITS))
        notes.report("reading Kubernetes objects")
        stack.enter_context(kube)
        announcements = Announcements(notes.report, notes.warn)
        has_programs = is_any_attached()
        probes = Session(
            kernel, kube.filter(), verbose, attach, rules=not no_rules, snaplen=snaplen or 0, programs=has_programs,
            announcements=announcements,
        )  # fmt: skip
        session = stack.enter_context(probes)
        give_up()
        notes.report("reading rules", rules_read.phrase)
        said = _options_text(sys.argv[1:])
        request = TraceRequest(said, count, duration, no_rules, verbose, record_only, follow, live_filter)
        with StopSignals(end_seconds, lambda: output.note(EXPLAINING)) as stop:
            run = prepare(
                stack, kernel, session, kube, environment, output, request, all_results, line, quiet, numbers_connections,
                gives_all_syns,
            )  # fmt: skip
            kernel.free()
            memory.trim()
            notes.ready()
            for each in output.outputs():
                results = corrected(all_results, session.refused) if each.shows_all_results else limitations(session)
                each.begin(results, request.said, kernel.release)
            if ready_file:
                write_ready(ready_file, os.getpid())
            held = stack.pop_all()
            return drive(lambda: _complete(held, run, environment, output, stop, cmd), stop)


def _complete(
    held: ExitStack, run: Run, environment: TracingEnvironment, output: Output, stop: StopRequest, cmd: Sequence[str]
) -> int:
    """Reads until the end of the run, and releases what it holds. Returns the exit status."""
    with held:
        command = None
        try:
            run.begin()
            command = start(cmd) if cmd else None
            run.run(stop, command)
            for note in environment.close(run.summary.seconds):
                output.note(note)
            run.summary.not_written += environment.not_written()
            output.summary(run.summary)
        except BrokenPipeError:
            hang_up(sys.stdout)
            return 0
        finally:
            end(command)
    return status(run.summary, bool(cmd))


def _recording(
    target: str, sizes: Sequence[Any], redact: bool, explains: bool, capture: CaptureTarget | None, budget: BudgetLimits | None
) -> RecordingEnvironment:
    """The environment of a run that is recorded. What only a recording needs is imported here: a fifth of all imports."""
    from tracer.capture.record.capture_files import RotationLimits
    from tracer.capture.record.environment import RecordingEnvironment
    from tracer.capture.redact.records import RecordRedactor

    limits = RotationLimits(*(size or 0 for size in sizes))
    return RecordingEnvironment(target, limits, RecordRedactor() if redact else None, explains, capture, budget)


def _record_output(recording: RecordingEnvironment, line: StatusLine | None) -> Output:
    """The output of a run that is only recorded."""
    from tracer.capture.record.output import RecordOutput

    return RecordOutput(recording.files.names, line.guarded(sys.stderr) if line else None)


def is_status_shown(line: StatusLine, cmd: Sequence[str]) -> bool:
    """Whether a status line is shown during the run: no other program, nor the log, writes to its terminal meanwhile."""
    return line.is_live and not cmd and is_own(sys.stdout) and not _log.isEnabledFor(logging.DEBUG)


@dataclass(frozen=True)
class TraceRequest:
    """The options of a run, without the kernel's filter. Stored in a capture.

    Attributes:
        said: The options as typed.
        count: Stop after this many packets; 0 = no limit.
        duration: Stop after this time, s; 0 = no limit.
        conditions: What user space evaluates of the filter.
    """

    said: str = ""
    count: int = 0
    duration: float = 0
    no_rules: bool = False
    verbose: bool = False
    record_only: bool = False
    follow: bool = False
    conditions: DisplayFilter = field(default_factory=DisplayFilter)

    def stored(self) -> dict[str, Any]:
        """The fields as a capture stores them."""
        plain = {each.name: getattr(self, each.name) for each in fields(self)}
        return plain | {"conditions": stored_filter.encoded(self.conditions)}


def prepare(
    stack: ExitStack,
    kernel: Kernel,
    session: Session,
    kube: OwnerResolver,
    environment: TracingEnvironment,
    output: Output,
    request: TraceRequest,
    all_results: list[CheckResult],
    line: StatusLine | None = None,
    quiet: bool = False,
    numbers_connections: bool = False,
    gives_all_syns: bool = False,
) -> Run:
    """Builds a run on attached probes, and starts its recording if there is one.

    Args:
        all_results: The results of `doctor`, for the recording.
        line: The status line; None = none is shown.
        quiet: Only what went wrong is printed. It is no part of `request`, which a replay repeats.
        numbers_connections: Each packet has the number of its connection.
        gives_all_syns: The output gets the verdict of each SYN, also with --drops-only.
    """
    environment.attach(kernel, session)
    drops_only = kube.current.drops_only
    options = RunOptions(
        RunLimits(request.count, request.duration),
        has_rules=not request.no_rules,
        by_connection=request.follow,
        numbers_connections=numbers_connections,
        drops_only=drops_only,
        quiet=quiet,
        gives_all_syns=gives_all_syns,
        is_partial=drops_only,
        is_one_sided=kube.is_one_sided or request.conditions.is_one_sided,
        is_explained=not request.record_only,
        status=line,
        filters=(request.conditions,) if stored_filter.encoded(request.conditions) else (),
    )
    built = builder.build(environment, kube, output, options, stack)
    results = {"full": corrected(all_results, session.refused), "missed": limitations(session)}
    request_fields = request.stored() | {
        "drops_only": drops_only,
        "one_sided": kube.is_one_sided,
        "words": asdict(kube.selectors),
    }
    environment.start(RunStart(kube, built.parts, results, request_fields))
    return built.run


def _kube(options: Mapping[str, Any], environment: TracingEnvironment, filters: FilterOptions) -> OwnerResolver:
    """Makes the resolver of the objects that the options name."""
    source = ObjectSource(options["objects"] or "", options["kubeconfig"] or "", options["no_kube"], environment.cluster_view)
    return OwnerResolver(source, Selectors.of(options), filters.kernel_filter())


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
