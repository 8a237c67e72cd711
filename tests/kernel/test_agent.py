# SPDX-License-Identifier: Apache-2.0
"""An agent on a real kernel: its packets and its capture reach the client, and without a client it ends by itself."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Callable
from io import StringIO
from pathlib import Path

from scenes import traffic
from tests.kernel.conftest import ROOT
from tests.kernel.test_command import COMMAND, ENVIRONMENT, START_SECONDS
from tracer.capture.record.capture_files import RotationLimits
from tracer.cluster.cluster_run import ClusterRun, NodeCommand
from tracer.cluster.node_captures import NodeCaptures
from tracer.cluster.node_stream import NodeStream
from tracer.cluster.packet_stage import SingleViews
from tracer.errors import ClientGone
from tracer.pipeline.shutdown import StopRequest
from tracer.protocol.limits import LEASE_SECONDS
from tracer.render.json import JsonOutput

AGENT = [*COMMAND, "agent", "--stdio", "--no-kube", "--port", str(traffic.NODEPORT_HTTP)]
REQUESTS = 5
PATIENCE_SECONDS = 120.0
"""Longest wait for the packets of a request, s: the rules are read first."""


def wait_until(condition: Callable[[], object], seconds: float) -> None:
    """Waits until a function returns a true value."""
    until = time.monotonic() + seconds
    while not condition() and time.monotonic() < until:
        time.sleep(0.2)


def test_packets_and_capture_reach_the_client(node: None, tmp_path: Path) -> None:
    out, err, stop = StringIO(), StringIO(), StopRequest(seconds=60)
    captures = NodeCaptures(tmp_path / "captures", RotationLimits())
    command = ["sh", "-c", 'cd "$0" && exec "$@"', str(ROOT), "env", f"PYTHONPATH={ROOT}", *AGENT, "--record"]
    run = ClusterRun([NodeCommand("node-a", command)], JsonOutput(out, err), SingleViews(), captures=captures)
    thread = threading.Thread(target=run.run, args=(stop,))
    thread.start()
    wait_until(lambda: run.totals.traced or run.totals.failed, START_SECONDS)
    assert run.totals.traced == ["node-a"], (run.totals.failed, err.getvalue())
    for _ in range(REQUESTS):
        traffic.http_get()
    wait_until(lambda: out.getvalue().count('"type":"syn"') >= REQUESTS, PATIENCE_SECONDS)
    stop.request()
    thread.join(PATIENCE_SECONDS)
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    packets = [line for line in lines if line["type"] == "packet"]
    offset, error = run.clock_of("node-a")
    print(f"agent: packets={len(packets)} wire={run.totals.wire_bytes} offset={offset} error={error}")
    assert not thread.is_alive() and not run.totals.failed, (run.totals.failed, err.getvalue())
    assert {line["node"] for line in packets} == {"node-a"}
    assert sum(line["type"] == "syn" and line["good"] for line in lines) == REQUESTS
    assert run.totals.summary.packets == len(packets) > 5 * REQUESTS and not run.totals.summary.not_written
    # The client has the same clock: the offset is within its error.
    assert offset is not None and abs(offset) <= error < 1_000_000_000
    (path,) = captures.close()
    replay = [*COMMAND, "-r", str(path), "-o", "json"]
    replayed = subprocess.run(replay, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True)
    again = [json.loads(line) for line in replayed.stdout.splitlines()]
    assert replayed.returncode == 0, replayed.stderr
    assert [line for line in again if line["type"] == "packet"] == [
        {key: value for key, value in line.items() if key != "node"} for line in packets
    ]


def test_a_silent_client_ends_the_run(node: None) -> None:
    process = subprocess.Popen(
        AGENT, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=ENVIRONMENT, cwd=ROOT
    )
    assert process.stdin
    process.stdin.write(NodeStream().greeting())
    process.stdin.flush()
    began = time.monotonic()
    assert process.wait(START_SECONDS) == ClientGone.status
    assert process.stderr and "no word from the client" in process.stderr.read().decode()
    assert time.monotonic() - began >= LEASE_SECONDS
