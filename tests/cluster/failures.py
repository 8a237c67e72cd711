# SPDX-License-Identifier: Apache-2.0
"""What goes wrong between the plugin and its agents: each is said in a sentence, ends in time, and leaves no probe."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from cluster_scene import objects
from lab.exec_channel import GuestCommand
from tests.cluster.bed import SERVICES, START_SECONDS, PluginRun, TestBed
from tracer.cluster.node_stream import NodeStream, Result
from tracer.protocol.limits import LEASE_SECONDS
from tracer.protocol.messages import FrameKind, Shed

SAID_SECONDS = 60.0
"""Limit for the sentence about a failure, s."""
LEAVE_SECONDS = 60.0
"""Limit for the removal of the probes, s: an emulated processor is slow."""
STOPPED_SECONDS = 60.0
"""Time for which the client is stopped, s."""
CUT_BYTES = 6000
"""Bytes of a stream after which it is cut: after the start of the run, in the middle of the packets."""
MOST_AGENT_KB = 600_000
"""Largest memory of an agent to which no credit is given, kB."""
REQUESTS_WITHOUT_CREDIT = 150


@dataclass(frozen=True)
class Outcome:
    """What happened in one case. problem: "" = as it has to be. said: the sentence."""

    name: str
    said: str
    problem: str = ""

    @property
    def line(self) -> str:
        return f"{'FAILED' if self.problem else 'ok'}  {self.name}: {self.problem or self.said}"


Case = Callable[[TestBed, PluginRun], tuple[str, str]]
"""Makes the failure. Returns what was said, and the problem."""


def started(bed: TestBed, *options: str) -> PluginRun:
    """A plugin with these options whose probes are on, on all nodes. RuntimeError if they are not in time."""
    run = bed.plugin(*SERVICES, "-o", "json", *options)
    if not run.wait_for_lines(lambda lines: nodes_of(lines, "run") == set(bed.cluster), START_SECONDS):
        raise RuntimeError(f"the probes are not on: {run.stop().errors.decode(errors='replace')}")
    return run


def nodes_of(lines: list[dict[str, Any]], kind: str) -> set[str]:
    """The nodes that have lines of this type."""
    return {line["node"] for line in lines if line["type"] == kind and "node" in line}


def sentence(run: PluginRun, node: str, words: str = "is no longer traced") -> str:
    """Waits for the sentence about a node; "" = none came in time."""
    until = time.monotonic() + SAID_SECONDS
    while time.monotonic() < until:
        for line in run.error_text.splitlines():
            if f"Node {node} {words}" in line:
                return line
        time.sleep(0.2)
    return ""


def agent_killed(bed: TestBed, run: PluginRun) -> tuple[str, str]:
    """An agent is killed: the other node goes on."""
    first, last = bed.plan.nodes[0], bed.plan.nodes[-1]
    bed.cluster.run(last.name, ["pkill", "-9", "-f", "[-]m tracer agent"])
    said = sentence(run, last.name)
    count = len(run.lines)
    bed.scene("request", first, "--port", "30080", "--tcp", "4")
    goes_on = run.wait_for_lines(lambda lines: any(x.get("node") == first.name for x in lines[count:]), SAID_SECONDS)
    left = run.process.poll() is not None
    problem = "" if goes_on and not left else f"{first.name} did not go on"
    status = run.stop().status
    return said, problem or ("" if status == 0 else f"exit status {status}")


def api_server_gone(bed: TestBed, run: PluginRun) -> tuple[str, str]:
    """The API server ends, and its connections with it: the run ends by itself."""
    bed.api.die()
    try:
        said = [sentence(run, node) for node in bed.cluster]
        done = run.wait()
    finally:
        bed.api.start()
    return said[0], "" if all(said) and done.status == 0 else f"status {done.status}, said: {said}"


def stream_cut(bed: TestBed, run: PluginRun) -> tuple[str, str]:
    """A stream ends in the middle of a frame: nothing of the frame is used, the other node goes on."""
    first, last = bed.plan.nodes[0], bed.plan.nodes[-1]
    said, until = "", time.monotonic() + 4 * SAID_SECONDS
    while not said and time.monotonic() < until:
        bed.scene("request", first, "--port", "30080", "--tcp", "10")
        said = next((x for x in run.error_text.splitlines() if f"Node {last.name} is no longer traced" in x), "")
    ended = run.process.poll() is not None
    status = run.stop().status
    return said, f"status {status}, ended by itself: {ended}" if status or ended else ""


def client_stopped(bed: TestBed, run: PluginRun) -> tuple[str, str]:
    """The client is stopped for a minute, as by a closed lid: the agents remove their probes meanwhile."""
    os.kill(run.process.pid, signal.SIGSTOP)
    began = time.monotonic()
    try:
        while any(map(has_agent, bed.probes().values())) and time.monotonic() - began < LEASE_SECONDS + LEAVE_SECONDS:
            time.sleep(0.5)
        time.sleep(max(0.0, STOPPED_SECONDS - (time.monotonic() - began)))
        left = [node for node, text in bed.probes().items() if has_agent(text)]
    finally:
        os.kill(run.process.pid, signal.SIGCONT)
    said = [sentence(run, node) for node in bed.cluster]
    done = run.wait()
    if left:
        return said[0], f"agents are left on {', '.join(left)} while the client is stopped"
    return said[0], "" if all(said) and done.status == 0 else f"status {done.status}, said: {said}"


def has_agent(text: str) -> bool:
    """Whether what was found on a node has an agent's process."""
    return "tracer agent" in text


CASES: tuple[tuple[str, Case], ...] = (
    ("an agent is killed", agent_killed),
    ("the API server is gone", api_server_gone),
    ("a stream is cut in the middle of a frame", stream_cut),
    ("the client is stopped for a minute", client_stopped),
)


def run_case(bed: TestBed, name: str, case: Case, clean: dict[str, str]) -> Outcome:
    """Runs one case. clean: what is on the nodes without a trace."""
    if case is stream_cut:
        bed.api.cuts = {objects.agent_pod_name(bed.plan.nodes[-1]): CUT_BYTES}
    try:
        run = started(bed)
        try:
            said, problem = case(bed, run)
        finally:
            with suppress(OSError):
                run.process.kill()
    except (RuntimeError, OSError) as error:
        said, problem = "", str(error)
    finally:
        bed.api.cuts = {}
    return judged(bed, name, said, problem, clean)


def judged(bed: TestBed, name: str, said: str, problem: str, clean: dict[str, str]) -> Outcome:
    """The outcome, after a look at what is left on the nodes."""
    left = bed.wait_for_no_probes(clean, LEAVE_SECONDS)
    if left:
        problem = "; ".join(filter(None, (problem, *(f"left on {node}: {text!r}" for node, text in left.items()))))
    if not said and not problem:
        problem = "nothing was said"
    return Outcome(name, said, problem)


def no_credit(bed: TestBed, clean: dict[str, str]) -> Outcome:
    """A client that pings and gives no credit: the agent keeps a bounded queue, and counts what it could not send."""
    node = bed.plan.nodes[0]
    agent = bed.start(node.name, ["k8snet-trace", "agent", "--stdio", *SERVICES])
    client = _CreditlessClient(agent)
    problem, memory = "", 0
    try:
        if not client.wait_for_hello(START_SECONDS):
            return judged(bed, "no credit is given", "", f"no hello: {client.errors.decode(errors='replace')}", clean)
        # It says nothing about its start without credit: programs on the node do.
        until = time.monotonic() + START_SECONDS
        while "tracepoint" not in (now := bed.probes()[node.name]) and "kprobe" not in now and time.monotonic() < until:
            time.sleep(2)
        bed.scene("request", node, "--port", "30080", "--tcp", str(REQUESTS_WITHOUT_CREDIT))
        script = "grep VmRSS /proc/$(pgrep -f '[-]m tracer agent' | head -1)/status | tr -dc 0-9"
        memory = int(bed.cluster.run(node.name, ["sh", "-c", script]).text or 0)
        client.stop()
        status = client.wait(SAID_SECONDS * 2)
        shed = client.shed
        if status != 0:
            problem = f"status {status}: {client.errors.decode(errors='replace')[-300:]}"
        elif memory > MOST_AGENT_KB:
            problem = f"{memory} kB of memory"
        elif client.packets or not shed.get("packet"):
            problem = f"{client.packets} packets came without credit, said to be left out: {shed}"
    finally:
        agent.kill()
    said = f"left out and counted: {shed}; memory {memory // 1024} MB" if not problem else ""
    return judged(bed, "no credit is given", said, problem, clean)


class _CreditlessClient:
    """Says hello and pings, and takes frames that need no credit."""

    def __init__(self, agent: GuestCommand) -> None:
        self._agent, self._stream = agent, NodeStream()
        self._is_over = threading.Event()
        self.errors = b""
        self.packets = 0
        self.shed: dict[str, int] = {}
        agent.write(self._stream.hello_frame())
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._read, self._ping)]
        for thread in self._threads:
            thread.start()

    def _read(self) -> None:
        while piece := self._agent.read():
            channel, data = piece
            if channel == 2:
                self.errors += data
            else:
                for result in self._stream.feed(data, time.monotonic_ns()):
                    self._take(result)
        self._is_over.set()

    def _take(self, result: Result) -> None:
        if result.kind is FrameKind.PACKET:
            self.packets += 1
        if isinstance(result.content, Shed):
            for kind, count in result.content.frames.items():
                self.shed[kind] = self.shed.get(kind, 0) + count

    def _ping(self) -> None:
        while not self._is_over.wait(1):
            self._agent.write(self._stream.ping(time.monotonic_ns()))

    def wait_for_hello(self, seconds: float) -> bool:
        until = time.monotonic() + seconds
        while self._stream.hello is None and not self._is_over.is_set() and time.monotonic() < until:
            time.sleep(0.1)
        return self._stream.hello is not None

    def stop(self) -> None:
        self._agent.write(self._stream.stop())

    def wait(self, seconds: float) -> int | None:
        self._is_over.wait(seconds)
        return self._agent.status
