# SPDX-License-Identifier: Apache-2.0
"""The agent with --events and --otlp on a real kernel: a finding about real packets is an Event, a failed SYN is a span.

OpenTelemetry is no package of Debian: without its libraries in the machine only the Event is looked at.
"""

from __future__ import annotations

import importlib.util
import signal
import socket
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("prometheus_client")

from scenes import topology, traffic
from tests.kernel.conftest import ROOT
from tests.kernel.test_command import COMMAND, END_SECONDS, ENVIRONMENT, wait_until_ready
from tests.kernel.untouched import settled, state
from tests.support.api_server import ApiServer

HAS_OTLP = importlib.util.find_spec("opentelemetry") is not None
PATIENCE_SECONDS = 120.0
"""Longest wait for the Event of a packet, s: the rules are read first."""
SERVICE = {
    "kind": "Service", "metadata": {"namespace": "default", "name": "lonely-web", "uid": "5c0ffee5-0000"},
    "spec": {"clusterIP": "172.30.4.4", "ports": [{"name": "http", "port": 80, "nodePort": traffic.NODEPORT_LONELY}]},
}  # fmt: skip


@pytest.mark.thorough
def test_a_finding_is_an_event_and_a_failed_syn_is_a_span(node: None, tmp_path: Path) -> None:
    """A process listens on the NodePort of a Service without endpoints: each SYN to it is rejected by the Service's rule."""
    before = state()
    libraries = [str(ROOT)]
    with ExitStack() as stack:
        api = stack.enter_context(ApiServer([SERVICE]))
        api.reported.validates = True
        words = ["agent", "--metrics", "127.0.0.1:0", "--ready-file", str(tmp_path / "ready")]
        words += ["--events", "--kubeconfig", api.kubeconfig(tmp_path)]
        collector: Any = None
        if HAS_OTLP:
            import opentelemetry.sdk.trace

            from tests.support.collector import Collector

            libraries.append(str(Path(opentelemetry.sdk.trace.__file__).resolve().parents[3]))
            collector = stack.enter_context(Collector())
            words += ["--otlp", collector.url]
        environment = ENVIRONMENT | {"PYTHONPATH": ":".join(libraries), "NODE_NAME": "node-1"}
        stack.enter_context(socket.create_server(("0.0.0.0", traffic.NODEPORT_LONELY)))
        agent = subprocess.Popen([*COMMAND, *words], stderr=subprocess.PIPE, text=True, env=environment, cwd=ROOT)
        try:
            wait_until_ready(agent, tmp_path / "ready")
            until = time.monotonic() + PATIENCE_SECONDS
            while not any(event["reason"] == "NodeportHostProcess" for event in api.reported.events.values()):
                traffic.tcp_connect(topology.NODE4, traffic.NODEPORT_LONELY)
                assert agent.poll() is None and time.monotonic() < until, (api.reported.writes, api.reported.refused)
                time.sleep(1)
            began = time.monotonic()
            agent.send_signal(signal.SIGTERM)
            _, err = agent.communicate(timeout=END_SECONDS)
            print(f"SIGTERM: ended after {time.monotonic() - began:.1f} s\n{err}")
        finally:
            agent.kill()
    assert agent.returncode == 0 and "Traceback" not in err and api.reported.refused == []
    (event,) = (event for event in api.reported.events.values() if event["reason"] == "NodeportHostProcess")
    print(event)
    assert event["regarding"] == {
        "apiVersion": "v1", "kind": "Service", "namespace": "default", "name": "lonely-web", "uid": "5c0ffee5-0000",
    }  # fmt: skip
    assert event["reportingInstance"] == "node-1" and f"port {traffic.NODEPORT_LONELY} of this node" in event["note"]
    if collector:
        look_at_spans(collector)
    assert settled(before) == before


def look_at_spans(collector: Any) -> None:
    """The SYN's span has the rule, its owner and its cause; its hops are in order and within the span."""
    from tests.support.collector import values

    spans = [(span, values(span.attributes)) for span in collector.spans]
    refused = [(s, found) for s, found in spans if found.get("destination.port") == traffic.NODEPORT_LONELY]
    print(*refused, sep="\n")
    assert refused
    for span, found in refused:
        times = [event.time_unix_nano for event in span.events]
        assert times == sorted(times) and span.start_time_unix_nano <= times[0] <= times[-1] <= span.end_time_unix_nano
        assert abs(span.start_time_unix_nano - time.time_ns()) < 600e9
        assert found["k8s.service.name"] == "lonely-web" and "KUBE-EXTERNAL-SERVICES" in found["k8snet_trace.rule"]
        assert found["k8snet_trace.cause"] == "no endpoints" and found["k8snet_trace.evidence"] == "observed"
    bodies = [log.body.string_value for log in collector.log_records]
    print(*bodies, sep="\n")
    assert any("is also the NodePort of Service default/lonely-web" in body for body in bodies)
