# SPDX-License-Identifier: Apache-2.0
"""The always-on agent on a real kernel: it keeps its budget in floods, counts what it leaves out, and captures a finding."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import pytest

pytest.importorskip("prometheus_client")

import incidents
from scenes import load, scene, servers, topology, traffic
from tests.kernel import stress
from tests.kernel.conftest import ROOT
from tests.kernel.test_agent import wait_until
from tests.kernel.test_command import COMMAND, END_SECONDS, ENVIRONMENT, wait_until_ready
from tests.kernel.test_metrics import PATIENCE_SECONDS, Samples, count, samples, status

BUDGET = 0.2
"""Share of one processor, of an emulated one, which is slow."""
FLOOD_SECONDS, WINDOW_SECONDS, SETTLE_SECONDS = 45.0, 5.0, 15.0
DROPS_PER_SECOND, NO_SOCKET = 2000, 9
BACK_SECONDS = 90.0
"""Longest wait until everything is written again after a flood, s."""


class BudgetedAgent:
    """A running agent, with its log and its processor time. words: its options."""

    def __init__(self, place: Path, *words: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        self.log, ready = place / "log", place / "ready"
        command = [*COMMAND, "agent", "--metrics", self.address, "--no-kube", "--ready-file", str(ready), *words]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(command, stderr=log, text=True, env=ENVIRONMENT, cwd=ROOT)
        try:
            wait_until_ready(self.process, ready)
        except AssertionError:
            print(self.log.read_text())
            raise

    def writes_all(self) -> bool:
        """Whether nothing is left out for the budget at the moment."""
        lines = [line for line in self.log.read_text().splitlines() if line.startswith("The budget of")]
        return not lines or lines[-1].endswith("openings are written again.")

    def samples(self) -> Samples:
        return samples(self.address)

    def processor_seconds(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")

    def shares(self, seconds: float) -> list[float]:
        """Shares of one processor in consecutive windows."""
        found, until = [], time.monotonic() + seconds
        while time.monotonic() < until:
            began, used = time.monotonic(), self.processor_seconds()
            time.sleep(WINDOW_SECONDS)
            found.append((self.processor_seconds() - used) / (time.monotonic() - began))
        return found

    def end(self) -> str:
        """SIGTERM. Returns its log."""
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(END_SECONDS) == 0, self.log.read_text()
        return self.log.read_text()


class Flooded:
    """What was seen of an agent in one flood. shares: after settling; found: its metrics at the end of the flood."""

    def __init__(self, agent: BudgetedAgent, flood: Callable[[float], object]) -> None:
        before = agent.samples()
        thread = threading.Thread(target=flood, args=(FLOOD_SECONDS,))
        thread.start()
        self.first = agent.shares(SETTLE_SECONDS)
        self.shares = agent.shares(FLOOD_SECONDS - SETTLE_SECONDS - 2 * WINDOW_SECONDS)
        self.answers = [traffic.http_get().outcome for _ in range(3)]
        self.health, self.found = status(agent.address, "/healthz"), agent.samples()
        thread.join()
        self.shed = {
            kind: int(count(self.found, "shed_packets_total", kind=kind) - count(before, "shed_packets_total", kind=kind))
            for kind in ("openings", "failures", "any")
        }

    def __str__(self) -> str:
        shares = [f"{100 * share:.0f}" for share in (*self.first, *self.shares)]
        return f"shares of a processor in %: {' '.join(shares)}; shed {self.shed}; answers {self.answers}"


def connections(seconds: float) -> None:
    made, took = stress.tcp_connections(seconds)
    print(f"{made / took:.0f} connections a second")


def drops(seconds: float) -> None:
    """Datagrams to a port of the node that no socket has."""
    sent = load.udp_stream(DROPS_PER_SECOND, seconds, topology.NODE4, NO_SOCKET).result()
    print(f"{sent.rate:.0f} dropped datagrams a second")


def wait_for_rules(agent: BudgetedAgent) -> None:
    """Waits until a request was explained: the rules are read."""
    traffic.http_get()
    wait_until(lambda: count(agent.samples(), "syn_outcomes_total", cause="accepted"), PATIENCE_SECONDS)


@pytest.mark.thorough
def test_the_budget_is_kept_in_floods(node: None, tmp_path: Path) -> None:
    agent = BudgetedAgent(tmp_path, "--cpu", f"{100 * BUDGET:g}%")
    try:
        wait_for_rules(agent)
        wait_until(agent.writes_all, BACK_SECONDS)
        print("idle:", agent.shares(2 * WINDOW_SECONDS))
        opened = Flooded(agent, connections)
        memory = opened.found["process_resident_memory_bytes"][0][1] / 1e6
        print("connections:", opened, f"{memory:.0f} MB", agent.log.read_text(), sep="\n")
        assert median(opened.shares) <= 1.5 * BUDGET, opened
        assert opened.shed["openings"] > 1000 and opened.answers == ["answered"] * 3 and opened.health == 200, opened
        assert "openings are no longer written." in agent.log.read_text()
        wait_until(agent.writes_all, BACK_SECONDS)
        assert agent.writes_all(), agent.log.read_text()
        print("after:", agent.shares(WINDOW_SECONDS), agent.log.read_text(), sep="\n")
        accepted = count(agent.samples(), "syn_outcomes_total", cause="accepted")

        def is_counted() -> bool:
            """Sends a request. Few of them, and few questions: each takes a part of the budget on this slow processor."""
            traffic.http_get()
            time.sleep(WINDOW_SECONDS)
            return count(agent.samples(), "syn_outcomes_total", cause="accepted") > accepted

        wait_until(is_counted, BACK_SECONDS)
        assert is_counted(), "requests are counted again"
        wait_until(agent.writes_all, BACK_SECONDS)
        dropped = Flooded(agent, drops)
        print("drops:", dropped, sep="\n")
        assert median(dropped.shares) <= 1.5 * BUDGET, dropped
        assert dropped.shed["failures"] > 1000 and dropped.answers == ["answered"] * 3 and dropped.health == 200, dropped
        found = dropped.found
        assert 0 < count(found, "dropped_packets_total") < DROPS_PER_SECOND * FLOOD_SECONDS, "a sample of them is counted"
        # Nothing is concluded from the absence of what was left out.
        assert not count(found, "syn_outcomes_total", cause="no answer"), found["k8snet_trace_syn_outcomes_total"]
        log = agent.end()
        print(log)
        assert "Traceback" not in log
    finally:
        agent.process.kill()


@pytest.mark.thorough
def test_without_a_budget_the_same_floods_take_more(node: None, tmp_path: Path) -> None:
    agent = BudgetedAgent(tmp_path)
    try:
        wait_for_rules(agent)
        opened = Flooded(agent, connections)
        print("connections:", opened)
        assert median(opened.shares) > 1.5 * BUDGET, opened
        assert not opened.shed["openings"] and not opened.shed["failures"], opened
        print(agent.end())
    finally:
        agent.process.kill()


@pytest.mark.thorough
def test_the_capture_of_a_finding_shows_it(node: None, tmp_path: Path) -> None:
    """Incident 2: SYNs vanish, because one of three endpoints does not accept."""
    incident, directory = incidents.find(2), tmp_path / "captures"
    try:
        incident.up("stuck")
        agent = BudgetedAgent(tmp_path, "--dump", str(directory))
        try:
            # To another pod: a request to the one that does not accept would fill its queue.
            traffic.http_get(topology.PODS[1].addr4, servers.HTTP_PORT)
            time.sleep(WINDOW_SECONDS)
            print(incident.traffic())
            written = {"finding": incident.finding, "result": "written"}
            wait_until(lambda: count(agent.samples(), "finding_captures_total", **written), PATIENCE_SECONDS)
            found = agent.samples().get("k8snet_trace_finding_captures_total")
            print(found, [(path.name, path.stat().st_size) for path in directory.iterdir()], agent.log.read_text())
            log = agent.end()
        finally:
            agent.process.kill()
        assert "Traceback" not in log
        (path,) = directory.glob(f"finding-*-{incident.finding}.k8st")
        assert path.stat().st_mode & 0o777 == 0o600 and f"The capture of the finding {incident.finding} is {path}" in log
        replay = [*COMMAND, "-r", str(path), "-o", "json"]
        done = subprocess.run(replay, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True)
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        print(done.stderr, *(line for line in lines if line["type"] == "finding"), sep="\n")
        shown = {line["name"]: line for line in lines if line["type"] == "finding"}
        assert incident.finding in shown and f"Finding {incident.finding}: {shown[incident.finding]['text']}"[:60] in log
        assert any(line["type"] == "packet" and line["dport"] == traffic.NODEPORT_HTTP for line in lines)
        assert "its run went on" in done.stderr and "Traceback" not in done.stderr
    finally:
        incidents.down()
        scene.up()
