# SPDX-License-Identifier: Apache-2.0
"""The views of several nodes over their real stream: `kubectl k8snet-trace top` and `ui`, which leave no probe behind."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Sequence
from typing import Any

from tests.cluster.bed import END_SECONDS, SERVICES, START_SECONDS, TestBed
from tests.cluster.failures import Outcome, judged
from tests.support.pseudo_terminal import PseudoTerminal

REQUESTS = 6
"""Requests through the NodePort of the first node, half of which are answered on another node, more or less."""
SHOWN_SECONDS = 120.0
"""Limit until the packets of these requests are shown, s: emulated nodes explain slowly."""
DOWN = b"\x1b[B"
TOP, UI = "top counts a packet of two nodes once", "ui shows a packet on two nodes"
Line = dict[str, Any]


def check(bed: TestBed, clean: dict[str, str]) -> list[Outcome]:
    """Runs both views, one after the other. clean: what is on the nodes without a trace."""
    return [_judged(bed, name, run, clean) for name, run in ((TOP, _top), (UI, _ui))]


def _judged(bed: TestBed, name: str, run: Any, clean: dict[str, str]) -> Outcome:
    try:
        said, problem = run(bed)
    except (RuntimeError, OSError, subprocess.SubprocessError) as error:
        said, problem = "", str(error)
    return judged(bed, name, said, problem, clean)


def _wait_for_probes(bed: TestBed) -> None:
    """Waits until all nodes have programs. Raises RuntimeError if they are not in time."""
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until:
        if all("tracepoint" in text or "kprobe" in text for text in bed.probes().values()):
            return
        time.sleep(2)
    raise RuntimeError("the probes are not on")


def problem_of(lines: Sequence[Line], nodes: Sequence[str], requests: int) -> str:
    """What is wrong with the intervals of `top --by node -o json`; "" = nothing."""
    total = sum(line["total"]["packets"] for line in lines)
    by_node = {name: 0 for name in nodes}
    for line in lines:
        for row in line["rows"]:
            if row["key"] not in by_node:
                return f"a row of {row['key']}, which is no node"
            by_node[row["key"]] += row["packets"]
    if not all(by_node.values()):
        return f"a node has no packet: {by_node}"
    if not requests <= total < sum(by_node.values()):
        return f"{total} packets, by node {by_node}: those of two nodes have to be counted once"
    if max(line.get("nodes", 0) for line in lines) != len(nodes):
        return f"the number of nodes is not {len(nodes)}"
    if any(hop.get("node") not in by_node for line in lines for hop in line["total"]["hops"]):
        return "a time has no node"
    return ""


def _top(bed: TestBed) -> tuple[str, str]:
    """The table of all nodes as JSON."""
    run = bed.plugin("top", *SERVICES, "--by", "node", "--interval", "5", "-o", "json")
    try:
        _wait_for_probes(bed)
        bed.scene("request", bed.plan.nodes[0], "--port", "30080", "--tcp", str(REQUESTS))
        names = list(bed.cluster)
        run.wait_for_lines(lambda lines: bool(lines) and not problem_of(lines, names, REQUESTS), SHOWN_SECONDS)
        done = run.stop()
    finally:
        run.process.kill()
    lines = run.objects()
    problem = problem_of(lines, names, REQUESTS) if lines else "no interval was printed"
    if done.status:
        problem = f"exit status {done.status}: {done.errors.decode(errors='replace')[-300:]}"
    total = sum(line["total"]["packets"] for line in lines)
    return f"{total} packets in {len(lines)} intervals", problem


def _ui(bed: TestBed) -> tuple[str, str]:
    """The screen of all nodes on a terminal."""
    terminal = PseudoTerminal()
    command, environment = bed.command("ui", *SERVICES)
    size = {"TERM": "xterm-256color", "COLUMNS": "120", "LINES": "40"}
    process = subprocess.Popen(
        command, env={**os.environ, **environment, **size}, stdin=terminal.fd, stdout=terminal.fd, stderr=terminal.fd,
        start_new_session=True,
    )  # fmt: skip
    try:
        _wait_for_probes(bed)
        bed.scene("request", bed.plan.nodes[0], "--port", "30080", "--tcp", str(REQUESTS))
        first, last = bed.plan.nodes[0].name, bed.plan.nodes[-1].name
        ways = (f"{first} > {last}", f"{last} > {first}")
        until = time.monotonic() + SHOWN_SECONDS
        while not any(way in terminal.text for way in ways) and time.monotonic() < until and process.poll() is None:
            terminal.type(DOWN)  # only the packets of the chosen connection are listed, and half of them stay on one node
            time.sleep(2)
        is_shown = any(way in terminal.text for way in ways)
        terminal.type(b"q")
        status = process.wait(END_SECONDS)
    finally:
        process.kill()
        process.wait()
        terminal.close()
    problem = f"exit status {status}: {terminal.text[-300:]!r}" if status else "" if is_shown else "no packet of two nodes"
    return f"a packet of {first} and {last} is on the screen", problem
