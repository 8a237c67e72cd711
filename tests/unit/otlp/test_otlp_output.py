# SPDX-License-Identifier: Apache-2.0
"""`agent --otlp`: what a collector gets, field by field, and what each fault of it does."""

from __future__ import annotations

import io
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
pytest.importorskip("prometheus_client")

from opentelemetry.proto.logs.v1.logs_pb2 import SEVERITY_NUMBER_WARN
from opentelemetry.proto.trace.v1.trace_pb2 import Status

from tests.support import captures
from tests.support import sample_packets as samples
from tests.support.collector import Collector, CollectorFault, values
from tests.support.metric_books import book
from tests.support.metric_books import values as metric_values
from tests.support.sample_findings import FOUND
from tests.support.syns import at_listener, syn, verdicts
from tests.support.waiting import PATIENCE, until
from tracer.capture.replay import runner
from tracer.capture.replay.file_series import opened
from tracer.capture.replay.runner import ReplayRequest
from tracer.errors import BadOption, NoLibrary
from tracer.metrics.metrics_output import MetricsOutput
from tracer.model.evidence import Evidence
from tracer.model.finding import Finding
from tracer.model.kube import ObjectReference, Owner
from tracer.model.packet import Packet
from tracer.model.rule import Rule, RuleHit, RuleLocation, RuleTrace
from tracer.model.summary import RunSummary
from tracer.otlp import otlp_output, packet_attributes
from tracer.otlp.collector_url import collector_url
from tracer.otlp.otlp_counts import OtlpCounts
from tracer.otlp.otlp_output import SPANS_AT_ONCE, OtlpOutput, TracedMachine
from tracer.otlp.otlp_sender import LONGEST_REQUESTED_PAUSE, MOST_LOG_RECORDS, MOST_SPANS, OtlpSender
from tracer.otlp.trace_identity import trace_id
from tracer.packets.outcome import BAD
from tracer.pipeline import sending_thread
from tracer.pipeline.shutdown import StopRequest
from tracer.util.frozen import evolve

ROOT = Path(__file__).parents[3]
MACHINE = TracedMachine("node-a", "host-a", "4e2c-boot", "0.1.0")


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as made:
        yield made


class Agent:
    """An output whose thread does not run: `step` does its work, at a time of the test."""

    def __init__(self, url: str) -> None:
        self.counts, self.err, self.now = OtlpCounts(), io.StringIO(), 1000.0
        self.sender = OtlpSender(url, self.counts)
        self.output = OtlpOutput(self.sender, MACHINE, self.err, clock=lambda: self.now)

    def step(self, seconds: float = 0.0) -> bool:
        self.now += seconds
        done = self.sender.step(self.now)
        self.output.end_batch(0)
        return done

    @property
    def results(self) -> dict[tuple[str, str], int]:
        return {key: count for key, count in self.counts.read().items() if count}


@pytest.fixture
def agent(collector: Collector) -> Agent:
    return Agent(collector.url)


def rejected(connection: int = 7, number: int = 3) -> Packet:
    """A packet that a rule for a Service rejected."""
    rule = Rule("ip6", "kube-proxy", "reject-chain", 3, "ip6 daddr fd00:10:96::a3f1 reject", "", "REJECT")
    hit = RuleHit((RuleLocation("filter-output", 1), RuleLocation("reject-chain", 3)), rule, "REJECT", Evidence.OBSERVED)
    owner = Owner("Service", "default", "lonely-web", "http", "kube-proxy", "no endpoints", evidence="comment")
    packet = samples.with_hop(samples.rejected(), 0, rule_trace=RuleTrace((hit,)), owner=owner)
    return evolve(packet, connection=connection, number=number, tcp_flags="ACK", iface="eth0")


def test_a_packet_that_failed(agent: Agent, collector: Collector) -> None:
    packet = rejected()
    agent.output.packet(packet)
    assert agent.step()
    (request,) = collector.traces
    resource = values(request.resource_spans[0].resource.attributes)
    assert resource.pop("service.instance.id")
    assert {key: resource[key] for key in resource if not key.startswith("telemetry.")} == {
        "service.name": "k8snet-trace", "service.version": "0.1.0", "k8s.node.name": "node-a", "host.name": "host-a",
        "k8snet_trace.boot_id": "4e2c-boot",
    }  # fmt: skip
    (span,) = collector.spans
    found, began = values(span.attributes), packet.hops[0].time
    ends = packet.endpoints
    assert span.name == "TCP ACK rejected" and span.status.code == Status.STATUS_CODE_ERROR
    assert span.status.message == packet.verdict and span.parent_span_id == b""
    assert span.start_time_unix_nano == packet.time
    assert span.end_time_unix_nano == packet.time + packet.hops[-1].time - began
    standard = {key: value for key, value in found.items() if not key.startswith("k8snet_trace.")}
    assert standard == {
        "source.address": ends.src, "source.port": ends.sport, "destination.address": ends.dst,
        "destination.port": ends.dport, "network.transport": "tcp", "network.type": "ipv6", "network.interface.name": "eth0",
        "k8s.service.name": "lonely-web", "k8s.namespace.name": "default",
    }  # fmt: skip
    assert found["k8snet_trace.verdict"] == packet.verdict and found["k8snet_trace.outcome"] == "rejected"
    assert found["k8snet_trace.decided_by"] == "rule" and "reject-chain 3" in found["k8snet_trace.rule"]
    assert (
        found["k8snet_trace.rule.text"] == "ip6 daddr fd00:10:96::a3f1 reject" and found["k8snet_trace.owner.kind"] == "Service"
    )
    assert found["k8snet_trace.evidence"] == "observed" and found["k8snet_trace.complete"] is True
    assert found["k8snet_trace.connection"] == 7 and found["k8snet_trace.packet"] == 3
    assert agent.results == {("traces", "exported"): 1} and agent.err.getvalue() == ""


def test_each_hop_is_an_event_with_the_time_of_the_kernel(agent: Agent, collector: Collector) -> None:
    packets = [evolve(p, number=n) for n, p in enumerate(samples.every()) if p.outcome in BAD and p.tcp_flags != "SYN"]
    packets.append(rejected(number=99))
    for packet in packets:
        agent.output.packet(packet)
    assert agent.step() and len(collector.spans) == len(packets) > 1
    for span, packet in zip(collector.spans, packets, strict=True):
        began = packet.hops[0].time
        assert [e.time_unix_nano for e in span.events] == [packet.time + hop.time - began for hop in packet.hops]
        for event, hop in zip(span.events, packet.hops, strict=True):
            found = values(event.attributes)
            assert event.name.split()[0] == found["k8snet_trace.hop"] == hop.kind.value
            assert found["k8snet_trace.evidence"] == hop.evidence.value and found["k8snet_trace.netns"] == hop.netns
    refusing = next(e for e in collector.spans[-1].events if "REJECT" in e.name)
    assert refusing.name == "chain OUTPUT ip6 kube-proxy REJECT"
    assert values(refusing.attributes)["k8snet_trace.rule.chain"] == "reject-chain"


def test_packets_of_a_connection_are_one_trace(agent: Agent, collector: Collector) -> None:
    for number, connection in ((1, 5), (2, 5), (3, 6), (4, 0), (5, 0)):
        packet = rejected(connection, number)
        agent.output.packet(evolve(packet, hops=tuple(replace(h, time=h.time + number) for h in packet.hops)))
    assert agent.step()
    first, second, other, alone, also_alone = collector.spans
    assert first.trace_id == second.trace_id and second.parent_span_id == first.span_id and first.parent_span_id == b""
    assert len({each.trace_id for each in (first, other, alone, also_alone)}) == 4
    assert len({each.span_id for each in collector.spans}) == 5


def test_identities_follow_from_what_was_traced() -> None:
    given = ("node-a", "boot", 5, 123)
    assert trace_id(*given) == trace_id(*given) and 0 < trace_id(*given) < 1 << 128
    others = [("node-b", "boot", 5, 123), ("node-a", "b", 5, 123), ("node-a", "boot", 6, 123), ("node-a", "boot", 5, 124)]
    assert len({trace_id(*given), *(trace_id(*other) for other in others)}) == 5


def test_replays_of_a_capture_agree(collector: Collector, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two replays through the real pipeline give equal spans, and a finding belongs to the trace of its packet."""
    monkeypatch.setattr("tracer.pipeline.live_source.POLL_SECONDS", 0.001)
    path = captures.capture(tmp_path / "a.k8st", captures.some_batches(20)).path
    found = []
    for _ in range(2):
        agent = Agent(collector.url)
        with opened([str(path)]) as capture:
            runner.replay(capture, agent.output, ReplayRequest(drops_only=True, numbers_connections=True), StopRequest())
        assert agent.step()
        found.append((list(collector.spans), list(collector.log_records)))
        collector.traces.clear()
        collector.logs.clear()
    (spans, logs), (again, logs_again) = found
    assert spans == again and len(spans) >= 10
    assert [(log.trace_id, log.span_id, log.body) for log in logs] == [
        (log.trace_id, log.span_id, log.body) for log in logs_again
    ]
    dropped = next(log for log in logs if values(log.attributes)["k8snet_trace.finding"] == "dropped_by_rule")
    assert (dropped.trace_id, dropped.span_id) in {(span.trace_id, span.span_id) for span in spans}


def test_a_finding_is_a_log_record(agent: Agent, collector: Collector) -> None:
    agent.output.finding(evolve(FOUND, subject=ObjectReference("Service", "shop", "cart"), cause="It is \x1b so."))
    assert agent.step()
    (log,) = collector.log_records
    assert log.severity_number == SEVERITY_NUMBER_WARN and log.severity_text == "WARN"
    assert log.body.string_value == "It is \\x1b so." and log.time_unix_nano == FOUND.last and log.trace_id == b""
    assert log.event_name == "k8snet_trace.finding"
    assert values(log.attributes) == {
        "k8snet_trace.finding": "nodeport_host_process", "k8snet_trace.check": "ss -lntp",
        "k8snet_trace.cure": "Take another port.", "k8snet_trace.certain": True, "k8snet_trace.packets": 3,
        "k8s.service.name": "cart", "k8s.namespace.name": "shop",
    }  # fmt: skip
    assert agent.results == {("logs", "exported"): 1}


def test_a_syn_waits_for_its_cause(agent: Agent, collector: Collector) -> None:
    """One that nobody answered was not dropped: only its verdict makes a span of it. One with a good cause has none."""
    (silent,) = verdicts(syn())
    (dropped,) = verdicts(syn(*at_listener(False)))
    assert dropped.attempt and dropped.attempt.syn.outcome in BAD and silent.attempt
    agent.output.packet(evolve(dropped.attempt.syn, number=5))
    assert agent.step() and collector.spans == []
    dropped.attempt.syn = evolve(dropped.attempt.syn, number=5)
    good = replace(silent, cause=replace(silent.cause, good=True))
    for verdict in (dropped, silent, good, replace(silent, attempt=None)):
        agent.output.syn(verdict)
    assert agent.step()
    first, second = collector.spans
    assert values(first.attributes)["k8snet_trace.cause"] == dropped.cause.name
    assert values(second.attributes)["k8snet_trace.cause"] == silent.cause.name
    assert second.status.message == silent.cause.text and second.name == f"TCP SYN {silent.cause.name}"


def test_a_syn_without_a_verdict_is_sent_at_the_end(agent: Agent, collector: Collector) -> None:
    agent.output.packet(evolve(rejected(), tcp_flags="SYN"))
    assert agent.step() and collector.spans == []
    agent.output.summary(RunSummary())
    assert agent.results == {("traces", "shed"): 1}, "its thread does not run in this test"


def test_texts_of_others_are_escaped_and_bounded(agent: Agent, collector: Collector) -> None:
    packet = rejected()
    hops = tuple(evolve(hop, in_iface="\udcff\x1b" * 400) for hop in packet.hops)
    agent.output.packet(evolve(packet, verdict="v\x00" * 2000, hops=hops * 30))
    assert agent.step()
    (span,) = collector.spans
    assert len(values(span.attributes)["k8snet_trace.verdict"]) == packet_attributes.MOST_TEXT
    assert len(span.events) == otlp_output.MOST_EVENTS and span.dropped_events_count == 30 * len(hops) - len(span.events)
    texts = [t for e in span.events for t in values(e.attributes).values() if isinstance(t, str)]
    assert all(text.isprintable() and len(text) <= packet_attributes.MOST_TEXT_OF_HOP for text in texts)


def test_a_collector_that_is_busy(agent: Agent, collector: Collector) -> None:
    """503 with Retry-After: the batch waits that long, is said once, and arrives once."""
    collector.always = CollectorFault(503, {"Retry-After": "30"})
    agent.output.packet(rejected())
    agent.output.finding(FOUND)
    assert not agent.step() and len(collector.asked) == 1
    assert not agent.step(29) and len(collector.asked) == 1
    assert not agent.step(1) and len(collector.asked) == 2
    most = f"{MOST_SPANS:,} spans and {MOST_LOG_RECORDS:,} findings wait for it at most."
    assert agent.err.getvalue() == f"The collector at {collector.url} answered 503: {most}\n"
    collector.always = None
    assert agent.step(31) and len(collector.spans) == len(collector.log_records) == 1
    assert agent.err.getvalue().endswith(f"The collector at {collector.url} answers again.\n")
    assert agent.results == {("traces", "exported"): 1, ("logs", "exported"): 1}


def test_the_longest_pause_that_a_collector_can_ask_for(agent: Agent, collector: Collector) -> None:
    collector.faults.append(CollectorFault(429, {"Retry-After": "99999999"}))
    agent.output.finding(FOUND)
    assert not agent.step() and not agent.step(LONGEST_REQUESTED_PAUSE - 1) and agent.step(1)


def test_a_collector_that_is_gone(agent: Agent, collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tracer.otlp.otlp_sender.ANSWER_SECONDS", 0.1)
    agent = Agent(collector.url)
    collector.stop()
    agent.output.finding(FOUND)
    for _ in range(3):
        assert not agent.step(60)
    (line,) = agent.err.getvalue().splitlines()
    assert "does not take data (Connection refused)" in line
    collector.start()
    assert agent.step(60) and len(collector.log_records) == 1


def test_a_connection_that_ends_in_an_answer(agent: Agent, collector: Collector) -> None:
    """The library tries once more at once, and then after a pause of its own."""
    collector.faults.append(CollectorFault())
    agent.output.finding(FOUND)
    assert agent.step() and len(collector.log_records) == 1 and len(collector.asked) == 2


def test_a_collector_that_answers_too_late(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tracer.otlp.otlp_sender.ANSWER_SECONDS", 0.3)
    agent = Agent(collector.url)
    collector.always = CollectorFault(200, seconds=60)
    agent.output.finding(FOUND)
    began = time.monotonic()
    assert not agent.step() and time.monotonic() - began < 5
    assert "does not take data (it does not answer in time)" in agent.err.getvalue()


@pytest.mark.parametrize("status", [301, 400, 403, 500])
def test_a_collector_that_refuses(agent: Agent, collector: Collector, status: int) -> None:
    """Said once for each signal and status, and counted; a redirection is not followed, and no success."""
    collector.always = CollectorFault(status, {"Location": "http://127.0.0.1:1/"})
    for _ in range(2):
        agent.output.finding(FOUND)
        assert agent.step()
    assert agent.err.getvalue() == f"The collector at {collector.url} refuses logs ({status}): what it refuses is lost.\n"
    assert agent.results == {("logs", "refused"): 2}


def test_what_waits_is_bounded(agent: Agent, collector: Collector) -> None:
    collector.always = CollectorFault(503)
    for _ in range(MOST_LOG_RECORDS + 5):
        agent.output.finding(FOUND)
    for number in range(1, MOST_SPANS + 8):
        agent.now += 1
        agent.output.packet(rejected(number, number))
    assert agent.results == {("logs", "shed"): 5, ("traces", "shed"): 7}
    collector.always = None
    assert agent.step() and len(collector.spans) == MOST_SPANS and len(collector.log_records) == MOST_LOG_RECORDS
    assert len(collector.asked) == (MOST_SPANS + MOST_LOG_RECORDS) / 128


def test_a_flood_of_packets_is_limited(agent: Agent) -> None:
    for number in range(1, 1000):
        agent.output.packet(rejected(number, number))
    assert agent.results == {("traces", "shed"): 999 - SPANS_AT_ONCE}


def test_a_batch_that_cannot_be_encoded_does_not_stay(agent: Agent, collector: Collector) -> None:
    agent.sender.log_records.add("no log record")  # type: ignore[arg-type]
    agent.output.packet(rejected())
    assert agent.step() and agent.results == {("logs", "shed"): 1, ("traces", "exported"): 1}


def running(url: str, end_seconds: float = 2.0) -> tuple[OtlpOutput, OtlpCounts, io.StringIO]:
    counts, err = OtlpCounts(), io.StringIO()
    output = OtlpOutput(OtlpSender(url, counts), MACHINE, err, end_seconds=end_seconds)
    output.begin([], "")
    return output, counts, err


def test_the_end_sends_what_waits(collector: Collector) -> None:
    output, counts, err = running(collector.url)
    output.packet(evolve(rejected(), tcp_flags="SYN"))
    output.finding(FOUND)
    began = time.monotonic()
    output.summary(RunSummary())
    assert time.monotonic() - began < 2 and len(collector.spans) == len(collector.log_records) == 1
    assert err.getvalue() == "" and counts.read()["traces", "exported"] == 1


def test_what_the_end_cannot_send_is_counted(collector: Collector) -> None:
    collector.always = CollectorFault(503)
    output, counts, err = running(collector.url, 0.3)
    for _ in range(3):
        output.finding(FOUND)
    began = time.monotonic()
    output.summary(RunSummary())
    assert time.monotonic() - began < 2 and counts.read()["logs", "shed"] == 3
    assert err.getvalue().endswith(f"3 spans and findings did not reach {collector.url}: the run has ended.\n")


def test_the_thread_has_no_capability(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[tuple[str, tuple[str, ...]]] = []
    monkeypatch.setattr(sending_thread, "give_up", lambda but: given.append((threading.current_thread().name, but)))
    output, _, _ = running(collector.url)
    until(lambda: given)
    output.summary(RunSummary())
    assert given == [("OTLP", ())]


def test_the_metric() -> None:
    metrics = book(otlp_results=OtlpCounts().read)
    assert len(metric_values(metrics, "otlp_records")) == 6 and metric_values(book(), "otlp_records") == {}


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("collector:4318", "is no URL of a collector"),
        ("ftp://collector", "is no URL of a collector"),
        ("http://", "is no URL of a collector"),
        ("http://c:99999", "is no URL of a collector"),
        ("http://c:4318/?a=b", "is no URL of a collector"),
        ("http://c\n:4318/", "is no URL of a collector"),
        ("http://[::1", "is no URL of a collector"),
        ("https://me:secret@c:4318", "--otlp takes no password"),
    ],
)
def test_urls_that_are_none(url: str, words: str) -> None:
    with pytest.raises(BadOption) as refused:
        collector_url(url)
    assert words in str(refused.value) and "secret" not in str(refused.value)


def test_urls() -> None:
    assert collector_url("http://collector:4318/") == "http://collector:4318"
    assert collector_url("https://[::1]/otlp/") == "https://[::1]/otlp"


def test_the_agent_has_the_output(run: Any, monkeypatch: pytest.MonkeyPatch, collector: Collector) -> None:
    given: dict[str, Any] = {}

    def trace(cmd: Any, outputs: Any, notes: Any, view: Any, **arguments: Any) -> int:
        given.update(arguments)
        with view as output:
            assert [type(each) for each in output.outputs()] == [MetricsOutput, OtlpOutput]
            output.begin([], "")
            output.finding(Finding("mtu", (), "It is so.", (), "", ""))
            output.summary(RunSummary())
        return 0

    monkeypatch.setattr("tracer.commands.trace.trace", trace)
    monkeypatch.setenv("NODE_NAME", "node-b")
    status, _, _ = run("agent", "--metrics", "127.0.0.1:0", "--otlp", collector.url, "--no-kube")
    assert status == 0 and given["numbers_connections"]
    (request,) = collector.logs
    assert values(request.resource_logs[0].resource.attributes)["k8s.node.name"] == "node-b"


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    from tracer.commands import always_on

    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http", None)
    with pytest.raises(NoLibrary, match=r"pip install '\.\[otlp\]'"):
        always_on.run("127.0.0.1:0", always_on.AgentOptions(10, otlp="http://c:4318"), {})


def test_sigterm_sends_what_fits(collector: Collector) -> None:
    """Nothing of the libraries is written to standard error, also where the first request fails."""
    collector.faults.append(CollectorFault(503))
    command = [sys.executable, "-m", "tests.support.endless_agent", "finding", "--otlp", collector.url]
    agent = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    try:
        until(lambda: collector.log_records)
        agent.send_signal(signal.SIGTERM)
        assert agent.wait(PATIENCE) == 0 and len(collector.log_records) == 2
        assert agent.stderr
        lines = agent.stderr.read().splitlines()
        assert re.match("Metrics at http://", lines[0]) and [line for line in lines[1:] if "nginx listens" not in line] == []
    finally:
        agent.kill()
