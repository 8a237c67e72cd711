# SPDX-License-Identifier: Apache-2.0
"""The outputs of one run, any number at once: standard output and files, each with its own format, queue and losses.

A slow or broken output stops neither the others nor the tracing. What it could not take is counted, and the summary says so.
"""

from __future__ import annotations

import math
import os
import stat
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TextIO, cast

from tracer import render
from tracer.errors import BadOption, OutputNotWritten
from tracer.model.check import CheckResult
from tracer.model.finding import Finding
from tracer.model.handshake import HandshakeVerdict
from tracer.model.joined_packet import JoinedPacket
from tracer.model.packet import Packet
from tracer.model.summary import OutputLoss, RunSummary
from tracer.model.time_form import TimeForm
from tracer.model.timeline import Timeline
from tracer.packets.shared_packet import SharedPacket
from tracer.render.base import LostEvents, Output
from tracer.util.new_file import fresh
from tracer.util.queued_stream import QueuedStream
from tracer.util.status_line import StatusLine

if TYPE_CHECKING:
    from tracer.model.prediction import PredictedPath
    from tracer.model.prediction_check import PredictionCheck

END_PATIENCE = 10.0
"""Longest time without progress that the end of a run waits for the reader of a file or pipe, s."""
SLOW = "its reader was too slow"


@dataclass(frozen=True)
class OutputSpec:
    """One `-o FORMAT[:FILE]`.

    Attributes:
        form: Name of the format.
        path: File; "" = standard output.
        times: How a format for people shows times.
    """

    form: str
    path: str = ""
    times: TimeForm = TimeForm.LOCAL

    @property
    def name(self) -> str:
        return f"{self.form}:{self.path}" if self.path else self.form


def parse(text: str) -> OutputSpec:
    """Reads FORMAT or FORMAT:FILE. Raises BadOption."""
    form, colon, path = text.partition(":")
    if colon and not path:
        raise BadOption(f"-o {text} names no file: write -o {form}:FILE.")
    render.require(form)
    return OutputSpec(form, path)


@dataclass
class Sink:
    """One output of a run.

    Attributes:
        spec: Format and file.
        output: The format, which writes to `stream`.
        stream: Its queue.
        is_noted: The user knows that it is broken.
    """

    spec: OutputSpec
    output: Output
    stream: QueuedStream
    is_noted: bool = False

    @property
    def loss(self) -> OutputLoss | None:
        """What it has not written so far; None = nothing."""
        if not self.stream.shed:
            return None
        return OutputLoss(self.spec.name, self.stream.shed, _reason(self.stream.error) if self.stream.error else SLOW)


class Sinks(Output):
    """Passes each call to several outputs.

    Args:
        sinks: The outputs. The first one writes the notes.
        recorded: The run is also recorded, so it goes on when all outputs are broken.

    Raises:
        OSError: By each call, when all outputs are broken and the run is not recorded: the error of the first one.
    """

    def __init__(self, sinks: Sequence[Sink], recorded: bool = False) -> None:
        first = sinks[0].output
        super().__init__(first.out, first.err, first.verbose)
        self._sinks, self._recorded = sinks, recorded
        self._summary: RunSummary | None = None

    def outputs(self) -> Iterator[Output]:
        return (sink.output for sink in self._sinks)

    def for_node(self, node: str) -> Sinks:
        return Sinks([replace(sink, output=sink.output.for_node(node)) for sink in self._sinks], self._recorded)

    def begin(self, results: Sequence[CheckResult], options_text: str, release: str = "") -> None:
        self._each(lambda output: output.begin(results, options_text, release))

    def set_node_clock(self, offset: int) -> None:
        self._each(lambda output: output.set_node_clock(offset))

    def packet(self, packet: Packet) -> None:
        self._each(lambda output: output.packet(packet))

    def repeat(self, packet: SharedPacket) -> None:
        self._each(lambda output: output.repeat(packet))

    def joined(self, joined: JoinedPacket) -> None:
        self._each(lambda output: output.joined(joined))

    def lost(self, loss: LostEvents) -> None:
        self._each(lambda output: output.lost(loss))

    def not_sent(self, frames: Mapping[str, int]) -> None:
        self._each(lambda output: output.not_sent(frames))

    def finding(self, finding: Finding) -> None:
        self._each(lambda output: output.finding(finding))

    def syn(self, verdict: HandshakeVerdict) -> None:
        self._each(lambda output: output.syn(verdict))

    def timeline(self, timeline: Timeline) -> None:
        self._each(lambda output: output.timeline(timeline))

    def connection(self, timeline: Timeline) -> None:
        self._each(lambda output: output.connection(timeline))

    def begin_batch(self) -> None:
        self._each(lambda output: output.begin_batch())

    def settled(self, until: int) -> None:
        self._each(lambda output: output.settled(until))

    def end_batch(self, now: int) -> None:
        self._each(lambda output: output.end_batch(now))

    def summary(self, summary: RunSummary) -> None:
        for sink in self._sinks:
            sink.stream.is_last = True
        summary.not_written += [loss for sink in self._sinks if (loss := sink.loss)]
        self._summary = summary
        self._each(lambda output: output.summary(summary))

    def node_summary(self, summary: RunSummary) -> None:
        self._each(lambda output: output.node_summary(summary))

    def doctor(self, results: Sequence[CheckResult], status: int) -> None:
        self._each(lambda output: output.doctor(results, status))

    def explained(self, predicted_paths: Sequence[PredictedPath]) -> None:
        self._each(lambda output: output.explained(predicted_paths))

    def compared(self, packet: Packet, compared: PredictionCheck) -> None:
        self._each(lambda output: output.compared(packet, compared))

    def note(self, text: str) -> None:
        self._sinks[0].output.note(text)

    def _each(self, call: Callable[[Output], None]) -> None:
        for sink in self._sinks:
            call(sink.output)
        self._note_broken()

    def _note_broken(self) -> None:
        broken = [sink for sink in self._sinks if sink.stream.error]
        if len(broken) == len(self._sinks) and not self._recorded and broken[0].stream.error:
            raise broken[0].stream.error
        for sink in broken:
            if not sink.is_noted and sink.stream.error:
                sink.is_noted = True
                others = "The recording continues." if self._recorded and len(self._sinks) == 1 else "The others continue."
                what = f"The output {sink.spec.name}" if sink.spec.path else "The printed output"
                self.note(f"{what} stops here: {_reason(sink.stream.error)}. {others}")

    def close(self) -> None:
        """Waits until everything is written.

        Raises:
            OutputNotWritten: A file lacks records.
        """
        for sink in sorted(self._sinks, key=lambda sink: not sink.spec.path):
            # A person may read standard output page by page.
            sink.stream.drain(END_PATIENCE if sink.spec.path else math.inf)
        for sink in self._sinks:
            loss = sink.loss
            if self._summary and loss and loss not in self._summary.not_written and not sink.is_noted:
                records = f"{loss.records} records were" if loss.records > 1 else "1 record was"
                self.note(f"{loss.output}: {records} not written: {loss.why}.")
        failed = [sink for sink in self._sinks if sink.spec.path and sink.stream.error]
        if failed and failed[0].stream.error:
            raise OutputNotWritten(f"{failed[0].spec.name} is not complete: {_reason(failed[0].stream.error)}.")


def _reason(error: OSError | None) -> str:
    if isinstance(error, BrokenPipeError):
        return "its reader has ended"
    return (error and error.strerror) or str(error)


@contextmanager
def opened(
    specs: Sequence[OutputSpec], verbose: bool, recorded: bool = False, waits: bool = False, line: StatusLine | None = None
) -> Iterator[Output]:
    """A block with the outputs of a run.

    A single output to standard output has no queue, unless the run is recorded: nothing else could go on.

    Args:
        specs: The outputs; at most one to standard output.
        verbose: Show every hop.
        recorded: The run is also recorded.
        waits: A full queue makes the run wait, as in a replay.
        line: A status line, perhaps on the terminal of standard output or standard error.

    Raises:
        BadOption: Two outputs go to standard output, or to one file.
        OutputNotWritten: A file cannot be created; at the end of the block: a file lacks records.
    """
    if len({spec.path for spec in specs}) < len(specs):
        raise BadOption("Each output needs its own file, and one at most goes to standard output: -o text -o json:FILE.")
    if len(specs) == 1 and not specs[0].path and not recorded:
        out, err = (line.guarded(stream) if line else stream for stream in (sys.stdout, sys.stderr))
        yield render.find(specs[0].form)(out, err, verbose=verbose, times=specs[0].times)
        return
    with ExitStack() as stack:
        made = [_sink(stack, spec, verbose, waits, line) for spec in specs]
        made.sort(key=lambda sink: bool(sink.spec.path))
        for sink in made[1:]:
            sink.output.err = stack.enter_context(open(os.devnull, "w", encoding="utf-8"))
        sinks = Sinks(made, recorded)
        try:
            yield sinks
        except BaseException:
            for sink in made:
                sink.stream.drain(0)
            raise
        sinks.close()


def _sink(stack: ExitStack, spec: OutputSpec, verbose: bool, waits: bool, line: StatusLine | None) -> Sink:
    if spec.path:
        fd = _open(spec)
        stack.callback(os.close, fd)
    else:
        sys.stdout.flush()
        fd = sys.stdout.fileno()
    guard = line.hidden if line and line.is_live and os.isatty(fd) else nullcontext
    stream = QueuedStream(fd, spec.name, waits, guard=guard)
    err = line.guarded(sys.stderr) if line else sys.stderr
    return Sink(spec, render.find(spec.form)(cast(TextIO, stream), err, verbose=verbose, times=spec.times), stream)


def _open(spec: OutputSpec) -> int:
    """Creates the file; an existing pipe or device is opened. Waits for the reader of a named pipe."""
    try:
        kind = os.lstat(spec.path).st_mode if os.path.lexists(spec.path) else 0
        if stat.S_ISFIFO(kind) or stat.S_ISCHR(kind):
            return os.open(spec.path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        return fresh(spec.path)
    except FileExistsError:
        raise OutputNotWritten(f"{spec.path} exists already: choose another name, or remove it.") from None
    except OSError as e:
        raise OutputNotWritten(f"{spec.path} cannot be written: {e.strerror}.") from e
