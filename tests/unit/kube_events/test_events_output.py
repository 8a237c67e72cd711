# SPDX-License-Identifier: Apache-2.0
"""`agent --events`: from a finding to an Event in another thread, what the end sends, and what it says."""

from __future__ import annotations

import io
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

pytest.importorskip("prometheus_client")

from tests.support.api_events import WriteFault
from tests.support.api_server import ApiServer
from tests.support.metric_books import book, values
from tests.support.sample_findings import FOUND
from tests.support.waiting import PATIENCE, until
from tracer.errors import NoObjects
from tracer.kube.kubeconfig import ApiAccess
from tracer.kube_events.event_counts import EventCounts
from tracer.kube_events.events_output import EventsOutput
from tracer.metrics.metrics_output import MetricsOutput
from tracer.model.summary import RunSummary
from tracer.pipeline import sending_thread
from tracer.util.frozen import evolve
from tracer.util.worker import thread_deaths, user_warnings

ROOT = Path(__file__).parents[3]


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer() as made:
        made.reported.validates = True
        yield made
        made.reported.released.set()


class Agent:
    """An output with its thread."""

    def __init__(self, server: ApiServer, end_seconds: float = 2.0) -> None:
        self.counts, self.err = EventCounts(), io.StringIO()
        access = ApiAccess("http", "127.0.0.1", server.port)
        self.output = EventsOutput(access, "node-a", self.counts, self.err, end_seconds=end_seconds)
        self.output.begin([], "")

    def end(self) -> float:
        """Ends the run. Returns how long that took, s."""
        began = time.monotonic()
        self.output.summary(RunSummary())
        return time.monotonic() - began


def test_a_finding_becomes_an_event_and_the_end_sends_its_last_number(server: ApiServer) -> None:
    agent = Agent(server)
    agent.output.finding(FOUND)
    until(lambda: len(server.reported.events) == 1)
    for _ in range(5):
        agent.output.finding_again(FOUND)
    until(lambda: agent.counts.read()["updated"] == 1)
    agent.output.finding_again(FOUND)
    assert agent.end() < 2
    (event,) = server.reported.events.values()
    assert event["reason"] == "NodeportHostProcess" and event["regarding"]["name"] == "node-a"
    assert event["series"]["count"] == 7 and server.reported.refused == [] and agent.err.getvalue() == ""
    assert agent.counts.read() == {"created": 1, "updated": 2, "shed": 0, "refused": 0}


def test_what_the_end_cannot_send_is_counted(server: ApiServer) -> None:
    """An API that answers too slowly for the grace period."""
    server.reported.always = WriteFault(seconds=60)
    agent = Agent(server, end_seconds=0.4)
    for name in ("a", "b", "c"):
        agent.output.finding(evolve(FOUND, name=name))
    until(lambda: server.posted)
    assert agent.end() < 2
    text = "3 Events about findings are missing or not up to date: the run has ended.\n"
    assert agent.counts.read()["shed"] == 3 and agent.err.getvalue().endswith(text)


def test_the_api_is_away_and_comes_back(server: ApiServer) -> None:
    server.die()
    agent = Agent(server)
    agent.output.finding(FOUND)
    until(lambda: agent.output._sender._is_away)
    agent.output.end_batch(1)
    assert " does not answer (Connection refused): Events about findings wait, 10 minutes at most." in agent.err.getvalue()
    server.start()
    assert agent.end() < 2 and len(server.reported.events) == 1
    assert agent.err.getvalue().endswith("The Kubernetes API takes Events again.\n")


def test_an_error_in_the_thread_is_counted_and_it_goes_on(server: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    agent, failures = Agent(server), user_warnings.failures
    take, broken = agent.output._sender.take, [True]

    def fails_once(*given: Any) -> None:
        if broken.pop() if broken else False:
            raise RuntimeError("unexpected")
        take(*given)

    monkeypatch.setattr(agent.output._sender, "take", fails_once)
    agent.output.finding(FOUND)
    until(lambda: user_warnings.failures == failures + 1)
    agent.output.finding(FOUND)
    until(lambda: server.reported.events)
    agent.end()
    assert "Kubernetes Events" not in thread_deaths.names()
    assert "the thread 'Kubernetes Events'" in "".join(user_warnings.read())


def test_the_thread_has_no_capability(server: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[tuple[str, tuple[str, ...]]] = []
    monkeypatch.setattr(sending_thread, "give_up", lambda but: given.append((threading.current_thread().name, but)))
    agent = Agent(server)
    until(lambda: given)
    agent.end()
    assert given == [("Kubernetes Events", ())]


def test_the_metric() -> None:
    counts = EventCounts()
    metrics = book(event_results=counts.read)
    assert values(metrics, "finding_events") == {("created",): 0, ("updated",): 0, ("shed",): 0, ("refused",): 0}
    assert values(book(), "finding_events") == {}


def test_the_agent_has_the_output(run: Any, monkeypatch: pytest.MonkeyPatch, server: ApiServer, tmp_path: Path) -> None:
    def trace(cmd: Any, outputs: Any, notes: Any, view: Any, **arguments: Any) -> int:
        with view as output:
            assert [type(each) for each in output.outputs()] == [MetricsOutput, EventsOutput]
            output.begin([], "")
            output.finding(FOUND)
            output.summary(RunSummary())
        return 0

    monkeypatch.setattr("tracer.commands.trace.trace", trace)
    monkeypatch.setenv("NODE_NAME", "node-a")
    config = server.kubeconfig(tmp_path)
    status, _, err = run("agent", "--metrics", "127.0.0.1:0", "--events", "--kubeconfig", config)
    assert status == 0 and err.endswith("Finding nodeport_host_process: nginx listens in vain.\n")
    (event,) = server.reported.events.values()
    assert event["reportingInstance"] == "node-a"


def test_without_access_to_the_api(run: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tracer.kube.kubeconfig.find", lambda path: None)
    status, _, err = run("agent", "--metrics", "127.0.0.1:0", "--events")
    assert status == NoObjects.status and "--events needs the Kubernetes API: give --kubeconfig FILE" in " ".join(err.split())


def test_sigterm_sends_what_fits(server: ApiServer, tmp_path: Path) -> None:
    options = ("finding_again", "--events", "--kubeconfig", server.kubeconfig(tmp_path))
    command = [sys.executable, "-m", "tests.support.endless_agent", *options]
    agent = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    try:
        assert agent.stderr
        found = re.fullmatch(r"Metrics at (http://127\.0\.0\.1:\d+)/metrics\n", agent.stderr.readline())
        until(lambda: server.reported.events)
        assert found
        text = urlopen(f"{found[1]}/metrics").read().decode()
        assert 'k8snet_trace_finding_events_total{result="shed"} 0.0' in text
        agent.send_signal(signal.SIGTERM)
        assert agent.wait(PATIENCE) == 0
        (event,) = server.reported.events.values()
        assert event["series"]["count"] == 2
    finally:
        agent.kill()
