# SPDX-License-Identifier: Apache-2.0
"""Records packets with the running probes, and keeps the printed output; the run is built as the command builds it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

from tracer.capture.record.capture_files import RotationLimits
from tracer.capture.record.environment import RecordingEnvironment
from tracer.capture.redact.records import RecordRedactor
from tracer.commands import doctor
from tracer.commands.trace import TraceRequest, prepare, unavailable_probes
from tracer.kernel.session import Kernel, Session
from tracer.kube.owner_resolver import ObjectSource, OwnerResolver
from tracer.kube.selectors import Selectors
from tracer.model.check import CheckResult
from tracer.model.filter import Filter
from tracer.model.finding import Finding
from tracer.model.handshake import HandshakeVerdict
from tracer.model.packet import Packet
from tracer.model.summary import RunSummary
from tracer.model.timeline import Timeline
from tracer.pipeline.run import Run
from tracer.pipeline.shutdown import StopRequest
from tracer.render.base import LostEvents, Output
from tracer.render.json import JsonOutput
from tracer.render.text import TextOutput

SETTLE = 0.8


class Patient(StopRequest):
    """A stop request without a deadline: the run explains all packets, also on a slow machine."""

    is_overdue = False


class Both(Output):
    """Writes the text and the JSON of one run."""

    def __init__(self, text: Output, json: Output) -> None:
        super().__init__()
        self._text, self._json = text, json

    def begin_as(self, few: Sequence[CheckResult], full: Sequence[CheckResult], options_text: str, release: str) -> None:
        self._text.begin(few, options_text, release)
        self._json.begin(full, options_text, release)

    def begin(self, results: Sequence[CheckResult], options_text: str, release: str = "") -> None: ...

    def begin_batch(self) -> None:
        self._text.begin_batch()
        self._json.begin_batch()

    def end_batch(self, now: int) -> None:
        self._text.end_batch(now)
        self._json.end_batch(now)

    def packet(self, packet: Packet) -> None:
        self._text.packet(packet)
        self._json.packet(packet)

    def lost(self, loss: LostEvents) -> None:
        self._text.lost(loss)
        self._json.lost(loss)

    def finding(self, finding: Finding) -> None:
        self._text.finding(finding)
        self._json.finding(finding)

    def syn(self, verdict: HandshakeVerdict) -> None:
        self._text.syn(verdict)
        self._json.syn(verdict)

    def timeline(self, timeline: Timeline) -> None:
        self._text.timeline(timeline)
        self._json.timeline(timeline)

    def summary(self, summary: RunSummary) -> None:
        self._text.summary(summary)
        self._json.summary(summary)

    def doctor(self, results: Sequence[CheckResult], status: int) -> None: ...

    def note(self, text: str) -> None:
        self._text.note(text)


@dataclass(frozen=True)
class Recorded:
    """A recorded run.

    Attributes:
        files: The capture, in order.
        text: The text output.
        json: The JSON output.
        messages: Messages beside the text.
        summary: The run's summary.
        lost: Number of events that are not in the capture.
    """

    files: tuple[Path, ...]
    text: Path
    json: Path
    messages: Path
    summary: RunSummary
    lost: int


class Recorder:
    """Records runs of the running probes.

    For NAME there are NAME.k8st, NAME.text and NAME.json, and NAME.messages: messages beside the text.

    Attributes:
        run: The latest run; None = none was begun.
    """

    def __init__(self, kernel: Kernel, session: Session, directory: Path) -> None:
        self.kernel, self.session, self.directory = kernel, session, directory
        self.full = doctor.gather()
        self.run: Run | None = None

    def __call__(
        self,
        name: str,
        work: Callable[[], object],
        packet_filter: Filter,
        objects: str = "",
        follow: bool = False,
        sizes: RotationLimits = RotationLimits(),  # noqa: B008
        place: Path | None = None,
        redacted: RecordRedactor | None = None,
        job: TraceRequest | None = None,
        selectors: Selectors = Selectors(),  # noqa: B008
        explains: bool = True,
    ) -> Recorded:
        """Records while `work` runs; raises what `work` raises.

        Args:
            name: Name of the files.
            work: Makes the packets.
            packet_filter: Filter of the run.
            objects: File with the API's objects, "" = none.
            follow: Output by connection.
            sizes: Limits of the capture's files.
            place: Directory of the capture, if it is not the directory of the output.
            redacted: Redacts all records; rules are then not read.
            job: Used instead of a request made from the other parameters.
            selectors: Selects packets by Kubernetes objects.
            explains: Packets are also explained; False = only recorded, as `record` does.
        """
        for old in self.directory.glob(f"{name}.*"):
            old.unlink()
        environment = RecordingEnvironment(str((place or self.directory) / f"{name}.k8st"), sizes, redacted, explains)
        job = job or TraceRequest(said=name, follow=follow, no_rules=bool(redacted))
        printed = tuple(self.directory / f"{name}.{form}" for form in ("text", "json", "messages"))
        with ExitStack() as stack:
            stack.callback(environment.close)
            text, json, messages = (stack.enter_context(path.open("w", buffering=1)) for path in printed)
            output = Both(TextOutput(text, messages), JsonOutput(json, StringIO()))
            kube = stack.enter_context(
                OwnerResolver(ObjectSource(objects, none=not objects, known=environment.cluster_view), selectors, packet_filter)
            )
            self.session.drain()
            self.session.losses()
            self.session.set_filter(kube.filter())
            run = prepare(stack, self.kernel, self.session, kube, environment, output, job, self.full)
            output.begin_as(unavailable_probes(self.session.refused), self.full, job.said, self.kernel.release)
            self.run = run
            run.begin()
            stop, failed = Patient(), list[Exception]()

            def run_work() -> None:
                try:
                    work()
                    time.sleep(SETTLE)
                except Exception as e:
                    failed.append(e)
                finally:
                    stop.request()

            thread = threading.Thread(target=run_work)
            thread.start()
            run.run(stop)
            thread.join()
            if failed:
                raise failed[0]
            for note in environment.close(run.summary.seconds):
                output.note(note)
            output.summary(run.summary)
        lost = environment.writer.lost if environment.writer else 0
        return Recorded(tuple(environment.files.names), printed[0], printed[1], printed[2], run.summary, lost)
