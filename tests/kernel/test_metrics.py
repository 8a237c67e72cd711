# SPDX-License-Identifier: Apache-2.0
"""The always-on agent on a real kernel: real drops and SYNs become metrics, and SIGTERM ends it and leaves nothing behind."""

from __future__ import annotations

import signal
import socket
import subprocess
import time
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

prometheus_client = pytest.importorskip("prometheus_client")

from prometheus_client.parser import text_string_to_metric_families  # noqa: E402

from scenes import topology, traffic  # noqa: E402
from tests.kernel.conftest import ROOT  # noqa: E402
from tests.kernel.test_command import COMMAND, END_SECONDS, ENVIRONMENT, wait_until_ready  # noqa: E402
from tests.kernel.untouched import settled, state  # noqa: E402

REQUESTS = 3
PATIENCE_SECONDS = 120.0
"""Longest wait for the counts of a request, s: the rules are read first."""
Samples = dict[str, list[tuple[dict[str, str], float]]]


def status(address: str, path: str) -> int:
    """The status of an answer; 0 = no answer."""
    try:
        with urlopen(f"http://{address}{path}", timeout=10) as answer:
            return int(answer.status)
    except HTTPError as e:
        return e.code
    except OSError:
        return 0


def samples(address: str) -> Samples:
    """The labels and values of all samples by their name."""
    with urlopen(f"http://{address}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    found: Samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


def count(found: Samples, name: str, **wanted: str) -> float:
    """The sum of the samples with these labels."""
    series = found.get(f"k8snet_trace_{name}", [])
    return sum(value for labels, value in series if wanted.items() <= labels.items())


def test_drops_and_syns_are_counted_and_sigterm_ends_it(node: None, tmp_path: Path) -> None:
    before = state()
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    words = ["agent", "--metrics", address, "--no-kube", "--ready-file", str(tmp_path / "ready")]
    agent = subprocess.Popen([*COMMAND, *words], stderr=subprocess.PIPE, text=True, env=ENVIRONMENT, cwd=ROOT)
    try:
        until = time.monotonic() + END_SECONDS
        while not status(address, "/healthz") and time.monotonic() < until:
            time.sleep(0.1)
        assert status(address, "/healthz") == 200 and status(address, "/readyz") == 503, "before the probes are attached"
        wait_until_ready(agent, tmp_path / "ready")
        assert status(address, "/readyz") == 200
        for _ in range(REQUESTS):
            traffic.http_get()
        traffic.tcp_connect(topology.NODE4, traffic.NODEPORT_LONELY)
        lonely = {"owner_kind": "Service", "owner_namespace": "default", "owner_name": "lonely-web"}
        found, until = samples(address), time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < until and not (
            count(found, "syn_outcomes_total", cause="accepted") >= REQUESTS and count(found, "dropped_packets_total", **lonely)
        ):
            time.sleep(1)
            found = samples(address)
        print(*(f"{name} {each}" for name, each in found.items() if "bucket" not in name), sep="\n")
        (rule,) = {
            labels["rule"] for labels, _ in found["k8snet_trace_dropped_packets_total"] if lonely.items() <= labels.items()
        }
        assert rule.startswith("filter/KUBE-EXTERNAL-SERVICES ")
        assert count(found, "syn_outcomes_total", result="answered", cause="accepted") >= REQUESTS
        assert count(found, "syn_outcomes_total", service="lonely-web", result="failed", cause="no endpoints") >= 1
        assert count(found, "packet_duration_seconds_count", outcome="rejected") >= 1
        assert count(found, "accept_queue_fill_ratio_count") >= REQUESTS
        assert 0 < count(found, "conntrack_entries") < count(found, "conntrack_limit_entries")
        assert count(found, "ring_fill_ratio_count") == count(found, "batches_total") > 0
        assert count(found, "ready") == 1 and status(address, "/healthz") == 200
        began = time.monotonic()
        agent.send_signal(signal.SIGTERM)
        _, err = agent.communicate(timeout=END_SECONDS)
        print(f"SIGTERM: ended after {time.monotonic() - began:.1f} s\n{err}")
        assert agent.returncode == 0 and "Traceback" not in err
        assert settled(before) == before
    finally:
        agent.kill()


def test_an_address_in_use_attaches_nothing(node: None) -> None:
    before = state()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        words = ["agent", "--no-kube", "--metrics", f"127.0.0.1:{taken.getsockname()[1]}"]
        done = subprocess.run([*COMMAND, *words], capture_output=True, text=True, env=ENVIRONMENT, cwd=ROOT)
    assert done.returncode == 30 and "cannot be served" in done.stderr and not done.stdout
    assert state() == before
