# SPDX-License-Identifier: Apache-2.0
"""The output of an agent that brings failed connections and findings to a collector of OpenTelemetry."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TextIO

from opentelemetry._logs import SeverityNumber
from opentelemetry.context import Context
from opentelemetry.sdk._logs import LoggerProvider, LogRecordProcessor, ReadableLogRecord, ReadWriteLogRecord
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import NonRecordingSpan, SpanContext, Status, StatusCode, TraceFlags, set_span_in_context

from tracer.model.check import CheckResult
from tracer.model.finding import Finding
from tracer.model.handshake import Cause, HandshakeVerdict
from tracer.model.packet import Packet
from tracer.model.summary import RunSummary
from tracer.otlp.otlp_sender import OtlpSender, Outbox
from tracer.otlp.packet_attributes import MOST_TEXT, finding_attributes, hop_events, packet_attributes, span_name
from tracer.otlp.trace_identity import GivenIdentities, span_id, trace_id
from tracer.packets.outcome import BAD
from tracer.pipeline.sending_thread import SendingThread
from tracer.render.base import LostEvents, Output
from tracer.util.escape import escaped
from tracer.util.lru_dict import LruDict
from tracer.util.token_bucket import TokenBucket

POLL_SECONDS = 1.0
"""Interval at which the thread looks for spans and log records, s."""
END_SECONDS = 2.0
"""Longest time that the end of a run waits for the collector, s."""
SPANS_AT_ONCE, SPANS_PER_SECOND = 500.0, 20.0
"""Spans that are made at once, and per second for longer times."""
MOST_CONNECTIONS = 4096
"""Connections and packets of which the trace is known."""
MOST_SYNS = 4096
"""SYNs that wait for their cause."""
MOST_EVENTS = 64
"""Largest number of hops of a span."""
SCOPE = "k8snet-trace"


@dataclass(frozen=True)
class TracedMachine:
    """What is traced, and by which program.

    Attributes:
        node: Name of the node.
        host: Name of the host.
        boot: Identity of its boot.
        version: Version of this program.
    """

    node: str
    host: str
    boot: str
    version: str

    def resource(self) -> Resource:
        """The same for the library, with what OTEL_RESOURCE_ATTRIBUTES adds."""
        return Resource.create({
            "service.name": SCOPE, "service.version": self.version, "k8s.node.name": escaped(self.node),
            "host.name": escaped(self.host), "k8snet_trace.boot_id": escaped(self.boot),
        })  # fmt: skip


class OtlpOutput(Output):
    """Makes a span of each packet that failed, in one trace for each connection, and a log record of each finding.

    A SYN waits for its cause: with a good one there is no span, unless the SYN itself was dropped or rejected.

    Args:
        sender: Brings them to the collector, in a thread of its own that begins with the run.
        machine: What is traced.
        err: Stream for notes; None = standard error.
        clock: Gives a monotonic time, s.
        end_seconds: Longest time that the end waits for the collector, s.
    """

    def __init__(
        self,
        sender: OtlpSender,
        machine: TracedMachine,
        err: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
        end_seconds: float = END_SECONDS,
    ) -> None:
        super().__init__(err=err)
        self._sender, self._machine, self._clock, self._end_seconds = sender, machine, clock, end_seconds
        self._identities = GivenIdentities()
        traces = TracerProvider(
            sampler=ALWAYS_ON, resource=machine.resource(), shutdown_on_exit=False, id_generator=self._identities,
            span_limits=SpanLimits(max_events=MOST_EVENTS),
        )  # fmt: skip
        traces.add_span_processor(_SpansTo(sender.spans))
        logs = LoggerProvider(resource=machine.resource(), shutdown_on_exit=False)
        logs.add_log_record_processor(_LogRecordsTo(sender.log_records))
        self._tracer = traces.get_tracer(SCOPE, machine.version)
        self._logger = logs.get_logger(SCOPE, machine.version)
        self._bucket = TokenBucket(SPANS_AT_ONCE, SPANS_PER_SECOND, clock())
        self._traces: LruDict[int, SpanContext] = LruDict(MOST_CONNECTIONS, "traces of connections")
        self._packets: LruDict[int, tuple[SpanContext, SpanContext | None]] = LruDict(MOST_CONNECTIONS, "traces of packets")
        self._syns: LruDict[int, Packet] = LruDict(MOST_SYNS, "SYNs that wait for OTLP", lambda _, syn: self._span(syn, None))
        self._thread = SendingThread("OTLP", lambda is_over: sender.step(clock()), POLL_SECONDS)

    def begin(self, results: Sequence[CheckResult], options_text: str, release: str = "") -> None:
        self._thread.start()

    def packet(self, packet: Packet) -> None:
        if packet.outcome not in BAD or packet.unexplained:
            return
        if packet.tcp_flags == "SYN":
            self._identify(packet)
            self._syns[packet.number] = packet
        else:
            self._span(packet, None)

    def syn(self, verdict: HandshakeVerdict) -> None:
        if not verdict.attempt:
            return
        syn = verdict.attempt.syn
        is_waiting = syn.number in self._syns
        if is_waiting:
            del self._syns[syn.number]
        if is_waiting or not verdict.cause.good:
            self._span(syn, verdict.cause)

    def finding(self, finding: Finding) -> None:
        traced = next((known[0] for number in finding.numbers if (known := self._packets.get(number))), None)
        self._logger.emit(
            timestamp=finding.last or time.time_ns(), observed_timestamp=time.time_ns(), context=_within(traced),
            severity_number=SeverityNumber.WARN, severity_text="WARN", body=escaped(finding.cause)[:MOST_TEXT],
            attributes=finding_attributes(finding), event_name="k8snet_trace.finding",
        )  # fmt: skip

    def _identify(self, packet: Packet) -> tuple[SpanContext, SpanContext | None]:
        """The identity of the span of a packet, and that of the first span of its trace; None = it is the first one."""
        if known := self._packets.get(packet.number):
            return known
        # A packet without the number of a connection has a trace of its own.
        root = self._traces.get(packet.connection) if packet.connection else None
        began = packet.hops[0].time if packet.hops else packet.time
        machine = self._machine
        trace = root.trace_id if root else trace_id(machine.node, machine.boot, packet.connection, began)
        sampled = TraceFlags(TraceFlags.SAMPLED)
        context = SpanContext(trace, span_id(trace, packet.number, began), is_remote=False, trace_flags=sampled)
        if packet.connection and not root:
            self._traces[packet.connection] = context
        self._packets[packet.number] = context, root
        return context, root

    def _span(self, packet: Packet, cause: Cause | None) -> None:
        """Makes the span of a packet. Its hops have the kernel's times."""
        if not self._bucket.take(self._clock()):
            self._sender.spans.shed()
            return
        context, root = self._identify(packet)
        self._identities.trace, self._identities.span = context.trace_id, context.span_id
        name, attributes = span_name(packet, cause), packet_attributes(packet, cause)
        span = self._tracer.start_span(name, _within(root), attributes=attributes, start_time=packet.time)
        last = 0
        for name, after, attributes in hop_events(packet):
            span.add_event(name, attributes, packet.time + after)
            last = max(last, after)
        why = cause.text if cause and not cause.good else packet.verdict
        span.set_status(Status(StatusCode.ERROR, escaped(why)[:MOST_TEXT]))
        span.end(packet.time + last)

    def lost(self, loss: LostEvents) -> None:
        """Metrics count them."""

    def end_batch(self, now: int) -> None:
        for note in self._sender.notes():
            self.note(note)

    def summary(self, summary: RunSummary) -> None:
        for number in self._syns:
            self._span(self._syns.pop(number), None)
        self._sender.end()
        self._thread.end(self._end_seconds)
        missing = self._sender.give_up()
        self.end_batch(0)
        if missing:
            self.note(f"{missing} spans and findings did not reach {self._sender.url}: the run has ended.")

    def doctor(self, results: Sequence[CheckResult], status: int) -> None:
        """An agent runs no `doctor`."""


def _within(span: SpanContext | None) -> Context:
    """The context of what belongs to a span; None = to none."""
    return set_span_in_context(NonRecordingSpan(span), Context()) if span else Context()


class _SpansTo(SpanProcessor):
    """Puts spans that have ended into an outbox."""

    def __init__(self, outbox: Outbox[ReadableSpan]) -> None:
        self._outbox = outbox

    def on_end(self, span: ReadableSpan) -> None:
        self._outbox.add(span)


class _LogRecordsTo(LogRecordProcessor):
    """Puts log records into an outbox."""

    def __init__(self, outbox: Outbox[ReadableLogRecord]) -> None:
        self._outbox = outbox

    def on_emit(self, log_record: ReadWriteLogRecord) -> None:
        resource = log_record.resource or Resource.get_empty()
        self._outbox.add(
            ReadableLogRecord(log_record.log_record, resource, log_record.instrumentation_scope, log_record.limits)
        )

    def shutdown(self) -> None:
        """Nothing is held here."""

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        """Nothing is held here."""
        return True
