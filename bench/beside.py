# SPDX-License-Identifier: Apache-2.0
"""Compares pwru with the tracer, with the same datagrams and the same filter: time of a start, and number of complete packets.

Datagrams go from the client through a NodePort's DNAT to a pod; each tool follows packets with the NodePort as their port,
through DNAT. Needs throughput.flow() around it. A tool is started and gets CALM packets one after the other, which gives its
number of lines per packet; then one second of each of RATES, each from another port. Its output is counted when it has stopped
writing.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import tools
from bench.throughput import SOURCE_PORT, hooked
from bench.tools import SCRATCH, Running, ToolFailed
from scenes import load
from scenes.topology import CLIENT4, NODE4
from scenes.traffic import NODEPORT_UDP

ROOT = Path(__file__).resolve().parent.parent
CALM, CALM_RATE = 20, 10.0
RATES = (100.0, 500.0, 2_000.0, 8_000.0)
SECONDS = 1.0
READY_SECONDS, QUIET_SECONDS, LONGEST_SECONDS = 300.0, 1.5, 120.0
"""Limit of a start; time without output after which the output counts as complete; limit of the wait for that; all in s."""
OURS = (sys.executable, "-m", "tracer")


def complete_packets(text: str, sport: int) -> int:
    """The number of packets from that client port that are complete in the tracer's text."""
    head = f" UDP {CLIENT4}:{sport} -> "
    return sum(head in block and "incomplete" not in block for block in text.split("\n\n"))


def replayed(capture: Path) -> str:
    """A capture as text."""
    command = [*OURS, "-r", str(capture)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


@dataclass(frozen=True)
class Tool:
    """words: its command. file: its output. text: gets the tracer's text from the file; None: one line per function."""

    name: str
    words: tuple[str, ...]
    file: Path
    text: Callable[[Path], str] | None = None


def all_tools() -> list[Tool]:
    port = str(NODEPORT_UDP)
    text, capture, lines = SCRATCH / "beside.text", SCRATCH / "beside.k8st", SCRATCH / "beside.pwru"
    theirs = ("pwru", "--filter-track-skb", "--output-file", str(lines))
    ours = ("--all-kmods", "--filter-func", tools.our_functions())
    return [
        Tool("k8snet-trace", (*OURS, "trace", "--no-kube", "--port", port), text, Path.read_text),
        Tool("pwru, the same functions", (*theirs, *ours, "port", port), lines),
        Tool("k8snet-trace record", (*OURS, "record", "--no-kube", "--port", port, str(capture)), capture, replayed),
        Tool("pwru, all functions", (*theirs, "port", port), lines),
    ]


@contextmanager
def started(tool: Tool) -> Iterator[tuple[Running, dict[str, float]]]:
    """The running tool, and the seconds and CPU seconds of its start. Ends the tool as Ctrl-C does."""
    ready, errors = SCRATCH / "beside.ready", SCRATCH / "beside.stderr"
    for path in (ready, tool.file):
        path.unlink(missing_ok=True)
    at = max(i for i, word in enumerate(tool.words) if word in ("pwru", "trace", "record")) + 1
    words = [*tool.words[:at], "--ready-file", str(ready), *tool.words[at:]]
    out = tool.file if tool.text == Path.read_text else Path(os.devnull)
    began = time.monotonic()
    with out.open("wb") as stdout, errors.open("wb") as stderr:
        process = subprocess.Popen(words, stdout=stdout, stderr=stderr, cwd=ROOT)
    running = Running(" ".join(tool.words), process)
    try:
        while not ready.exists():
            if process.poll() is not None or time.monotonic() > began + READY_SECONDS:
                raise ToolFailed(f"{running.command}: not ready: {errors.read_text()[-300:]}")
            time.sleep(0.1)
        yield running, {"seconds": time.monotonic() - began, "cpu": running.cpu_seconds}
    finally:
        process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(LONGEST_SECONDS)
        process.kill()
        process.wait()
        running.report["messages"] = errors.read_text()[-600:]


def size(file: Path) -> int:
    """Size of the file, bytes; 0 before it exists."""
    return file.stat().st_size if file.exists() else 0


def lines(file: Path) -> int:
    if not size(file):
        return 0
    with file.open("rb") as written:
        return sum(1 for _ in written)


def quiet(file: Path) -> float:
    """Waits until nothing more is written. Returns the seconds from the call to the last write."""
    began = last = time.monotonic()
    was = size(file)
    while time.monotonic() < min(last + QUIET_SECONDS, began + LONGEST_SECONDS):
        time.sleep(0.05)
        if (now := size(file)) != was:
            was, last = now, time.monotonic()
    return last - began


def send(rate: float, seconds: float, sport: int) -> int:
    """Sends datagrams from that port. Returns the number that reached a pod."""
    before = load.pods_received()
    load.udp_stream(rate, seconds, NODE4, NODEPORT_UDP, sport=sport).result()
    return load.pods_received() - before


def measure(tool: Tool, report: Callable[[str], None]) -> dict[str, Any]:
    """Measures one tool. rows, for each of RATES: packets sent, complete packets, seconds from last packet to last line."""
    rows: list[dict[str, Any]] = []
    with started(tool) as (running, start):
        attached = hooked()
        calm = send(CALM_RATE, CALM / CALM_RATE, SOURCE_PORT)
        quiet(tool.file)
        each = lines(tool.file) / calm
        for sport, rate in enumerate(RATES, SOURCE_PORT + 1):
            before, cpu = lines(tool.file), running.cpu_seconds
            sent = send(rate, SECONDS, sport)
            row = {"rate": rate, "sent": sent, "after": quiet(tool.file)}
            row |= {"cpu": running.cpu_seconds - cpu, "whole": min(sent, (lines(tool.file) - before) / max(each, 1))}
            rows.append(row)
    if tool.text:
        text = tool.text(tool.file)
        for sport, row in enumerate(rows, SOURCE_PORT + 1):
            row["whole"] = complete_packets(text, sport)
    cost = f"start {start['seconds']:.1f} s, {start['cpu']:.1f} CPU s"
    report(f"{tool.name}: {cost}, {attached} hooked, {each:.1f} lines per packet")
    for row in rows:
        report("{} {rate:.0f}/s: {whole:.0f} of {sent} complete, last line {after:.1f} s after".format(tool.name, **row))
    found = {"name": tool.name, "command": running.command, "messages": running.report["messages"]}
    return found | {"start": start, "hooked": attached, "lines": each, "rows": rows}


def run(report: Callable[[str], None]) -> list[dict[str, Any]]:
    """Measures all tools with the words of bench/run.py's --only in their name, one after the other."""
    found = []
    for tool in (t for t in all_tools() if os.environ.get("BENCH_ONLY", "") in t.name):
        try:
            found.append(measure(tool, report))
        except (ToolFailed, subprocess.CalledProcessError) as e:
            found.append({"name": tool.name, "error": str(e)})
    return found
