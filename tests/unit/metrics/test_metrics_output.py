# SPDX-License-Identifier: Apache-2.0
"""The sink: what is counted, what is only written to the log, and what the agent's health learns."""

from __future__ import annotations

import io
import lzma
import tempfile
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support import captures
from tests.support import sample_packets as samples
from tests.support.metric_books import book, values
from tests.support.syns import at_listener, last_ack, syn, synack, verdicts
from tracer.capture.replay import runner
from tracer.capture.replay.environment import ReplayEnvironment
from tracer.capture.replay.file_series import opened
from tracer.capture.replay.runner import ReplayedOwnerResolver, ReplayRequest
from tracer.kube.selectors import Selectors
from tracer.metrics.health import AgentHealth
from tracer.metrics.metrics_output import MetricsOutput
from tracer.model.check import CheckResult
from tracer.model.evidence import Evidence
from tracer.model.finding import Finding
from tracer.model.loss import LEFT_OUT, OPENINGS_LEFT_OUT, RING_NEARLY_FULL, Loss
from tracer.model.summary import RunSummary
from tracer.packets.outcome import BAD
from tracer.pipeline import builder
from tracer.pipeline.builder import RunOptions
from tracer.pipeline.shutdown import StopRequest


def test_only_failures_and_syns_are_counted() -> None:
    metrics = book()
    output = MetricsOutput(metrics, AgentHealth(), io.StringIO())
    for packet in samples.every():
        output.packet(packet)
        output.packet(replace(packet, unexplained=Evidence.OBSERVED))
    failed = [packet for packet in samples.every() if packet.outcome in BAD]
    assert sum(values(metrics, "dropped_packets").values()) == len(failed) > 2
    (verdict,) = verdicts(syn(*at_listener(True)), synack(), last_ack())
    output.syn(verdict)
    assert values(metrics, "syn_outcomes") == {("none", "none", "answered", "accepted"): 1}


def test_losses_are_counted_by_probe_and_shed_packets_apart() -> None:
    metrics = book()
    output = MetricsOutput(metrics, AgentHealth(), io.StringIO())
    for loss in (
        Loss("table", 0, 3, "full"),
        Loss("table", 1, 4, "full"),
        Loss("nat", 0, 1, "full"),
        Loss(LEFT_OUT, -1, 9, ""),
        Loss(LEFT_OUT, 1, 2, RING_NEARLY_FULL),
        Loss(LEFT_OUT, 0, 5, OPENINGS_LEFT_OUT),
    ):
        output.lost(loss)
    assert values(metrics, "lost_events") == {("table",): 7, ("nat",): 1} and output.lost_by_probe == {
        "table": 7, "nat": 1, LEFT_OUT: 16,
    }  # fmt: skip
    assert values(metrics, "shed_packets") == {("any",): 11, ("openings",): 5, ("failures",): 0}


def test_the_health_follows_the_run_and_the_log_has_what_is_wrong() -> None:
    err, health = io.StringIO(), AgentHealth()
    output = MetricsOutput(book(), health, err)
    assert not health.is_ready
    output.begin([CheckResult("bcc", "ok", "there"), CheckResult("Kubernetes API", "degraded", "no account")], "")
    assert health.is_ready
    output.finding(Finding("mtu", (), "The MTU of \x1b is too small.", (), "", ""))
    output.end_batch(1)
    output.summary(RunSummary())
    assert not health.is_ready
    assert err.getvalue() == "Kubernetes API: no account\nFinding mtu: The MTU of \\x1b is too small.\n"


def test_syns_that_succeed_are_given_although_only_failures_are_traced() -> None:
    """The real stages, as `build` connects them for the agent."""
    path = Path(__file__).parents[3] / "tests/data/real/J.k8st.xz"
    found = {}
    for gives_all_syns in (False, True):
        metrics = book(100)
        output = MetricsOutput(metrics, AgentHealth(), io.StringIO())
        with tempfile.NamedTemporaryFile(suffix=".k8st") as file, ExitStack() as stack:
            file.write(lzma.decompress(path.read_bytes()))
            file.flush()
            environment = ReplayEnvironment(stack.enter_context(opened([file.name])), lambda events: None)
            kube = ReplayedOwnerResolver(environment.cluster_view(), Selectors(), ReplayRequest())
            stack.enter_context(kube).filter()
            options = RunOptions(drops_only=True, gives_all_syns=gives_all_syns)
            run = builder.build(environment, kube, output, options, stack).run
            run.begin()
            run.run(StopRequest())
        found[gives_all_syns] = {labels: count for labels, count in values(metrics, "syn_outcomes").items()}
    assert not any("answered" in labels for labels in found[False])
    assert any("answered" in labels for labels in found[True])
    assert found[False] == {labels: count for labels, count in found[True].items() if "answered" not in labels}


def test_a_run_fills_the_metrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten packets that are delivered and ten that a rule drops, assembled from events; 17 events were lost."""
    monkeypatch.setattr("tracer.pipeline.live_source.POLL_SECONDS", 0.001)
    path = captures.capture(tmp_path / "a.k8st", captures.some_batches(20)).path
    metrics, health = book(), AgentHealth()
    output = MetricsOutput(metrics, health, io.StringIO())
    with opened([str(path)]) as capture:
        output.begin([], "")
        output.summary(runner.replay(capture, output, ReplayRequest(), StopRequest()))
    reason = "DROP in filter/INPUT"
    assert values(metrics, "dropped_packets") == {
        ("unknown", "none", "none", "none", reason): 1,
        ("filter/INPUT 1 (derived)", "administrator", "none", "none", reason): 9,
    }, "the rules had not been read when the first packet came"
    assert values(metrics, "syn_outcomes") == {
        ("none", "none", "failed", "conntrack INVALID"): 10, ("default", "http-proxy", "unknown", "not known"): 10,
    }  # fmt: skip
    assert values(metrics, "packet_duration_seconds") == {("dropped",): 10, ("delivered",): 10}
    assert values(metrics, "lost_events") == {("table",): 17} and values(metrics, "batches")[()] > 1
    assert values(metrics, "findings") == {("stale_conntrack", "true"): 1, ("dropped_by_rule", "true"): 1}
