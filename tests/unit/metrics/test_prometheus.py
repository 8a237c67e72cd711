# SPDX-License-Identifier: Apache-2.0
"""The real Prometheus scrapes the agent's endpoint, and answers queries; promtool checks and tests the alert rules."""

from __future__ import annotations

import io
import json
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest

from tests.support import captures
from tests.support import sample_packets as samples
from tests.support.metric_books import book
from tests.support.syns import at_listener, syn, verdicts
from tests.support.waiting import until
from tracer.capture.replay import runner
from tracer.capture.replay.file_series import opened
from tracer.capture.replay.runner import ReplayRequest
from tracer.metrics.endpoint import ListenAddress, MetricsEndpoint
from tracer.metrics.health import AgentHealth
from tracer.metrics.metrics_output import MetricsOutput
from tracer.model.kube import Owner
from tracer.model.summary import RunSummary
from tracer.pipeline.shutdown import StopRequest

ROOT = Path(__file__).resolve().parents[3]
ALERTS, ALERT_TESTS = ROOT / "deploy/prometheus/alerts.yaml", ROOT / "tests/data/prometheus/alerts_test.yaml"
DASHBOARD = ROOT / "deploy/grafana/k8snet-trace.json"
INSTALLS = "(make metrics-check installs it)"
with_promtool = pytest.mark.skipif(not shutil.which("promtool"), reason=f"there is no promtool here {INSTALLS}")
with_prometheus = pytest.mark.skipif(not shutil.which("prometheus"), reason=f"there is no prometheus here {INSTALLS}")
LABEL_SETS = 5
HOSTILE = 'a"\n}\x1b\udcff'
AS_LABEL = 'a"\\n}\\x1b\\xff'


@with_promtool
@pytest.mark.parametrize("words", [("check", "rules", str(ALERTS)), ("test", "rules", str(ALERT_TESTS))], ids=lambda w: w[0])
def test_the_alert_rules(words: tuple[str, ...]) -> None:
    done = subprocess.run(["promtool", *words], capture_output=True, text=True)
    assert done.returncode == 0 and "SUCCESS" in done.stdout, done.stdout + done.stderr


@with_promtool
def test_the_metrics_have_no_problem_that_promtool_knows() -> None:
    pytest.importorskip("prometheus_client")
    from tracer.metrics.exposition import Exposition

    metrics = book(version="0.1.0", kernel="6.12", node="node-1")
    metrics.packet(samples.rejected())
    _, text = Exposition(metrics).text("text/plain")
    done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()


class Prometheus:
    """A running server. directory: for its configuration and its data."""

    def __init__(self, directory: Path, target: ListenAddress) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._url = f"http://127.0.0.1:{free.getsockname()[1]}"
        scrape = {"job_name": "k8snet-trace", "static_configs": [{"targets": [str(target)], "labels": {"node": "node-1"}}]}
        interval = {"scrape_interval": "500ms", "scrape_timeout": "400ms", "evaluation_interval": "500ms"}
        config = directory / "prometheus.yml"
        config.write_text(json.dumps({"global": interval, "rule_files": [str(ALERTS)], "scrape_configs": [scrape]}))
        self._log = directory / "log"
        command = ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={directory / 'data'}"]
        with self._log.open("wb") as log:
            words = [*command, f"--web.listen-address={self._url.removeprefix('http://')}"]
            self.process = subprocess.Popen(words, stdout=log, stderr=log)

    def get(self, path: str, **arguments: str) -> Any:
        """The data of an answer of its API; None while it starts."""
        try:
            with urlopen(f"{self._url}/api/v1/{path}?{urlencode(arguments)}", timeout=30) as answer:
                found = json.load(answer)
        except HTTPError as e:
            if e.code == HTTPStatus.SERVICE_UNAVAILABLE:
                return None
            raise AssertionError((arguments, e.read().decode())) from e
        except OSError:
            assert self.process.poll() is None, self._log.read_text()
            return None
        assert found["status"] == "success", found
        return found["data"]

    def values(self, query: str) -> dict[tuple[str, ...], float]:
        """The values of a query, by the values of the labels that it gives, sorted by their names."""
        data = self.get("query", query=query)
        series = data["result"] if data else []
        return {tuple(v for _, v in sorted(each["metric"].items())): float(each["value"][1]) for each in series}

    def waits_for(self, query: str, wanted: Callable[[dict[tuple[str, ...], float]], bool]) -> None:
        """Returns when the answer is as wanted."""
        until(lambda: wanted(self.values(query)), lambda: f"{query}: {self.values(query)}", 0.2)


@pytest.fixture
def output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MetricsOutput:
    """The agent's sink after a run: the source, the assembler and the stages of the pipeline on made events."""
    monkeypatch.setattr("tracer.pipeline.live_source.POLL_SECONDS", 0.001)
    path = captures.capture(tmp_path / "a.k8st", captures.some_batches(20)).path
    health = AgentHealth()
    made = MetricsOutput(
        book(LABEL_SETS, version="0.1.0", kernel="6.12.1", node="node-1", is_ready=lambda: health.is_ready), health
    )
    made.err = io.StringIO()
    made.begin([], "")
    with opened([str(path)]) as capture:
        runner.replay(capture, made, ReplayRequest(), StopRequest())
    return made


@pytest.fixture
def prometheus(tmp_path: Path, output: MetricsOutput) -> Iterator[Prometheus]:
    pytest.importorskip("prometheus_client")
    from tracer.metrics.exposition import Exposition

    with MetricsEndpoint(ListenAddress("127.0.0.1", 0), output._health, Exposition(output._book).text) as endpoint:
        server = Prometheus(tmp_path, endpoint.address)
        try:
            yield server
        finally:
            server.process.send_signal(signal.SIGTERM)
            server.process.wait(60)


@with_prometheus
def test_prometheus_reads_the_metrics(prometheus: Prometheus, output: MetricsOutput) -> None:
    drops = "sum by (rule, owner_kind) (k8snet_trace_dropped_packets_total)"
    prometheus.waits_for(
        drops, lambda found: found == {("administrator", "filter/INPUT 1 (derived)"): 9, ("none", "unknown"): 1}
    )
    (target,) = prometheus.get("targets")["activeTargets"]
    assert (target["health"], target["lastError"]) == ("up", "")
    assert prometheus.values("sum by (result, cause) (k8snet_trace_syn_outcomes_total)") == {
        ("conntrack INVALID", "failed"): 10, ("not known", "unknown"): 10,
    }  # fmt: skip
    assert prometheus.values("sum by (probe) (k8snet_trace_lost_events_total)") == {("table",): 17}
    assert prometheus.values("sum by (version, kernel) (k8snet_trace_build_info)") == {("6.12.1", "0.1.0"): 1}
    assert prometheus.values("sum by (node) (k8snet_trace_ready)") == {("node-1",): 1}
    median = prometheus.values("histogram_quantile(0.5, sum by (le) (k8snet_trace_packet_duration_seconds_bucket))")
    assert 0 < median[()] < 1
    metadata = prometheus.get("metadata", metric="k8snet_trace_packet_duration_seconds")
    assert [(each["type"], each["unit"]) for (each,) in metadata.values()] == [("histogram", "seconds")]
    (group,) = prometheus.get("rules")["groups"]
    until(lambda: {rule["health"] for rule in prometheus.get("rules")["groups"][0]["rules"]} == {"ok"})
    assert len(group["rules"]) == 6
    output.summary(RunSummary())
    prometheus.waits_for("sum(k8snet_trace_ready)", lambda found: found == {(): 0})


@with_prometheus
def test_hostile_names_arrive_and_the_series_stay_bounded(prometheus: Prometheus, output: MetricsOutput) -> None:
    prometheus.waits_for("sum(k8snet_trace_dropped_packets_total)", lambda found: found == {(): 10})
    for name in (HOSTILE, *map(str, range(50))):
        output.packet(samples.with_hop(samples.rejected(), 0, owner=Owner("Service", "shop", name)))
    prometheus.waits_for("sum(k8snet_trace_dropped_packets_total)", lambda found: found == {(): 61})
    assert prometheus.values("count(k8snet_trace_dropped_packets_total)") == {(): LABEL_SETS + 1}
    names = prometheus.values("sum by (owner_name) (k8snet_trace_dropped_packets_total)")
    assert names[AS_LABEL,] == 1 and names["other",] == 48


@with_prometheus
def test_the_increase_is_right(prometheus: Prometheus, output: MetricsOutput) -> None:
    (verdict,) = verdicts(syn(*at_listener(False, accept_queue=129)))
    output.syn(verdict)
    full = 'k8snet_trace_syn_outcomes_total{cause="accept queue full"}'
    prometheus.waits_for(f"sum({full})", lambda found: found == {(): 1})
    for _ in range(5):
        output.syn(verdict)
    prometheus.waits_for(f"sum(max_over_time({full}[1m]) - min_over_time({full}[1m]))", lambda found: found == {(): 5})
    prometheus.waits_for('sum by (state) (ALERTS{alertname="K8snetTraceAcceptQueueFull",alertstate="pending"})', bool)


@with_prometheus
def test_each_query_of_the_dashboard_is_understood(prometheus: Prometheus) -> None:
    prometheus.waits_for("sum(k8snet_trace_dropped_packets_total)", lambda found: found == {(): 10})
    prometheus.waits_for("sum(count_over_time(k8snet_trace_ready[1m]))", lambda found: found.get((), 0) >= 3)
    panels, answers = json.loads(DASHBOARD.read_text())["panels"], {}
    for panel in panels:
        for target in panel["targets"]:
            query = target["expr"].replace("$instance", ".*").replace("$__rate_interval", "1m").replace("$__range", "1h")
            answers[panel["title"]] = prometheus.values(query)
    assert answers["Agents that are ready"] == {(): 1} and answers["Packets that fail, by rule"]
    assert ("6.12.1", "0.1.0") in answers["Versions"]
