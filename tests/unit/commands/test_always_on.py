# SPDX-License-Identifier: Apache-2.0
"""The command `agent` without --stdio: what its run is asked for, and that its port answers meanwhile."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import pytest

pytest.importorskip("prometheus_client")

from tests.support.waiting import PATIENCE, until
from tracer.capture.record.flight_recorder import FlightRecorder
from tracer.commands import always_on
from tracer.commands.always_on import AgentOptions
from tracer.errors import NoLibrary, NoProbe, OutputNotWritten
from tracer.metrics.metrics_output import MetricsOutput
from tracer.pipeline.capture_requests import CaptureRequests
from tracer.pipeline.reader_budget import BudgetLimits

ROOT = Path(__file__).parents[3]


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Replaces the run. It has begun when it returns; its arguments, and what the endpoint answered."""
    given: dict[str, Any] = {}

    def trace(cmd: Any, outputs: Any, notes: Any, view: Any, **arguments: Any) -> int:
        given.update(arguments, cmd=cmd)
        with view as output:
            assert isinstance(next(output.outputs()), MetricsOutput)
            given["outputs"] = list(output.outputs())
            output.begin([], "")
            if "url" in given:
                given["metrics"] = urlopen(f"{given['url']}/metrics").read().decode()
                given["ready"] = urlopen(f"{given['url']}/readyz").status
        return 0

    monkeypatch.setattr("tracer.commands.trace.trace", trace)
    return given


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def test_a_run_of_the_command(run: Any, traced: dict[str, Any]) -> None:
    address = f"127.0.0.1:{free_port()}"
    traced["url"] = f"http://{address}"
    status, out, err = run("agent", "--metrics", address, "--label-sets", "7", "--no-kube", "--namespace", "shop")
    assert (status, out, err) == (0, "", f"Metrics at http://{address}/metrics\n")
    assert traced["drops_only"] and traced["gives_all_syns"] and traced["end_seconds"] < 5
    assert traced["namespaces"] == ("shop",) and traced["cmd"] == () and traced["target"] is None
    assert "k8snet_trace_ready 1.0" in traced["metrics"] and traced["ready"] == 200


def test_a_budget_and_captures_around_findings(run: Any, traced: dict[str, Any], tmp_path: Path) -> None:
    words = ["--cpu", "2.5%", "--memory", "150M", "--dump", str(tmp_path / "dumps"), "--ring", "4M"]
    assert run("agent", "--metrics", f"127.0.0.1:{free_port()}", "--no-kube", *words)[0] == 0
    assert traced["budget"] == BudgetLimits(0.025, 150_000_000)
    recorder = traced["capture"]
    assert traced["target"] == str(tmp_path / "dumps") and (tmp_path / "dumps").is_dir()
    assert isinstance(recorder, FlightRecorder) and recorder._limits.ring_bytes == 4_000_000
    assert [type(each) for each in traced["outputs"]] == [MetricsOutput, CaptureRequests]


def test_without_a_budget_and_captures(run: Any, traced: dict[str, Any]) -> None:
    assert run("agent", "--metrics", f"127.0.0.1:{free_port()}", "--no-kube")[0] == 0
    assert traced["budget"] is None and "capture" not in traced


def test_a_directory_of_captures_that_others_may_change(traced: dict[str, Any], tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with pytest.raises(OutputNotWritten, match="is not safe"):
        always_on.run("127.0.0.1:0", AgentOptions(10, dump=str(tmp_path)), {})
    assert not traced


def test_the_port_is_closed_when_the_run_is_impossible(monkeypatch: pytest.MonkeyPatch) -> None:
    def trace(*given: Any, **arguments: Any) -> int:
        raise NoProbe("Tracing needs it.")

    monkeypatch.setattr("tracer.commands.trace.trace", trace)
    address = f"127.0.0.1:{free_port()}"
    with pytest.raises(NoProbe):
        always_on.run(address, AgentOptions(10), {})
    with pytest.raises(OSError):
        urlopen(f"http://{address}/healthz")


def test_an_address_in_use(run: Any, traced: dict[str, Any]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        status, _, err = run("agent", "--metrics", address)
    assert status == 30 and not traced
    sentence = f"The metrics cannot be served at {address}: Address already in use. Choose another address with --metrics."
    assert " ".join(err.split()) == f"k8snet-trace: {sentence}"


def test_without_the_library(monkeypatch: pytest.MonkeyPatch, traced: dict[str, Any]) -> None:
    monkeypatch.setitem(__import__("sys").modules, "prometheus_client", None)
    with pytest.raises(NoLibrary, match=r"python3-prometheus-client, or .* pip install '\.\[agent\]'"):
        always_on.run("127.0.0.1:0", AgentOptions(10), {})


ENDLESS = """
import time
from tracer.cli.main import main
from tracer.commands import trace as tracing
from tracer.model.summary import RunSummary
from tracer.pipeline.shutdown import StopSignals

def trace(cmd, outputs, notes, view, end_seconds, **arguments):
    stop = StopSignals(end_seconds)
    with view as output:
        output.begin([], "")
        while not stop.is_requested:
            time.sleep(0.01)
            output.end_batch(time.monotonic_ns())
        output.summary(RunSummary())
    return 0

tracing.trace = trace
main(["agent", "--metrics", "127.0.0.1:0"])
"""
"""The program with a run that has no kernel, and ends by a signal."""


def batches(url: str) -> float:
    found = re.search(r"^k8snet_trace_batches_total (\S+)$", urlopen(f"{url}/metrics").read().decode(), re.M)
    assert found
    return float(found[1])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_runs_until_a_signal(number: signal.Signals) -> None:
    agent = subprocess.Popen([sys.executable, "-c", ENDLESS], stderr=subprocess.PIPE, text=True, cwd=ROOT)
    try:
        assert agent.stderr
        found = re.fullmatch(r"Metrics at (http://127\.0\.0\.1:\d+)/metrics\n", agent.stderr.readline())
        assert found
        url = found[1]
        until(lambda: batches(url) > 1)
        assert urlopen(f"{url}/readyz").status == urlopen(f"{url}/healthz").status == 200
        agent.send_signal(number)
        assert agent.wait(PATIENCE) == 0 and agent.stderr.read() == ""
        with pytest.raises(URLError):
            urlopen(f"{url}/healthz")
    finally:
        agent.kill()
