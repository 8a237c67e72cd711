# SPDX-License-Identifier: Apache-2.0
"""The tracer at work, one line a packet: seconds until it is ready, packets that it keeps whole, memory after a minute.

Datagrams go from the client through a NodePort's DNAT to a pod. Needs throughput.flow() around it. The lab's emulated machine
has one CPU for the packets and the tracer; so the rate that the tracer keeps with a CPU of its own is computed: complete
packets per CPU second of its process, at the highest rate of RATES where every packet was complete. CPU time is that of all
threads of the process, from the first packet until it is idle again, with polling. A CPU second of the emulated machine is 10^9
instructions.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench import owners
from bench.beside import LONGEST_SECONDS, OURS, Tool, quiet, started
from bench.scenes import cluster, objects_file
from bench.tools import SCRATCH, Running
from scenes import load
from scenes.topology import CLIENT4, NODE4
from scenes.traffic import NODEPORT_UDP

RATES = (250.0, 500.0, 1_000.0, 2_000.0, 4_000.0, 8_000.0)
"""Packets a second, for BURST_SECONDS each; the first one at which a packet is missing is the last one measured."""
BURST_SECONDS = 1.0
MINUTE_SECONDS = 60.0
MINUTE_RATE = 100.0
"""Packets a second in the minute before memory is read: the emulated CPU has time for all of them."""
IDLE_SHARE = 0.3
"""Share of a CPU below which the tracer is idle: it only polls."""
SERVICES = 5_000
FIELDS = 8
"""Fields of a packet's line; those of a finding and of a SYN's cause have fewer."""
FIRST_PORT = 42_000
"""Client port of the first burst; each burst has its own."""
_SIZES = {"VmRSS": "now", "VmHWM": "most", "RssAnon": "anonymous", "RssFile": "mapped"}


def memory(running: Running) -> dict[str, float]:
    """Resident memory of the process, MB: now, at most since its start, and its two kinds."""
    assert running.process
    lines = Path(f"/proc/{running.process.pid}/status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    return {name: int(fields[field].split()[0]) * 1024 / 1e6 for field, name in _SIZES.items()}


def complete_lines(text: str, sport: int) -> int:
    """The number of packets from that client port that are complete in the tracer's output, one line a packet."""
    packets = (line.split("  ") for line in text.splitlines() if "incomplete" not in line)
    return sum(len(fields) == FIELDS and fields[1].startswith(f"{CLIENT4}:{sport} -> ") for fields in packets)


def settled(tool: Tool, running: Running) -> float:
    """Waits until the tracer neither writes nor computes: it prints nothing while it puts a large batch together.

    Returns:
        The seconds from the call to the last write.
    """
    began, last = time.monotonic(), 0.0
    while True:
        cpu, at = running.cpu_seconds, time.monotonic()
        if written := quiet(tool.file):
            last = at - began + written
        used = (running.cpu_seconds - cpu) / (time.monotonic() - at)
        if used < IDLE_SHARE or time.monotonic() > began + LONGEST_SECONDS:
            return last


def burst(tool: Tool, running: Running, rate: float, seconds: float, sport: int) -> dict[str, Any]:
    """Sends one burst and waits for its output. whole: number of complete packets in the output."""
    cpu = running.cpu_seconds
    sent = load.udp_stream(rate, seconds, NODE4, NODEPORT_UDP, sport=sport).result().packets
    after = settled(tool, running)
    used = running.cpu_seconds - cpu
    return {"rate": rate, "sent": sent, "whole": complete_lines(tool.file.read_text(), sport), "after": after, "cpu": used}


def kept_rate(rows: Sequence[dict[str, Any]]) -> float | None:
    """Packets per CPU second at the highest rate at which every packet was complete; None = there was none."""
    complete = [row for row in rows if row["sent"] and row["whole"] == row["sent"]]
    return complete[-1]["whole"] / complete[-1]["cpu"] if complete else None


def observe(name: str, objects: Path, rates: Sequence[float], report: Callable[[str], None]) -> dict[str, Any]:
    """Starts the tracer, sends a burst at each of the rates, then for a minute."""
    words = (*OURS, "trace", "--objects", str(objects), "--port", str(NODEPORT_UDP), "-o", "oneline")
    tool = Tool(name, words, SCRATCH / "live.oneline", Path.read_text)
    rows: list[dict[str, Any]] = []
    with started(tool) as (running, start):
        at_start = memory(running)
        report(f"{name}: ready after {start['seconds']:.1f} s, {start['cpu']:.1f} CPU s")
        for sport, rate in enumerate(rates, FIRST_PORT):
            rows.append(burst(tool, running, rate, BURST_SECONDS, sport))
            report("{} {rate:.0f}/s: {whole} of {sent} complete, {cpu:.2f} CPU s".format(name, **rows[-1]))
            if rows[-1]["whole"] < rows[-1]["sent"]:
                break
        minute = burst(tool, running, MINUTE_RATE, MINUTE_SECONDS, FIRST_PORT + len(RATES))
        used = memory(running)
        report(f"{name}: {used['now']:.0f} MB after a minute, {minute['whole']} of {minute['sent']} complete")
    return {"start": start, "at_start": at_start, "rows": rows, "minute": minute, "memory": used, "kept": kept_rate(rows)}


def run(report: Callable[[str], None]) -> dict[str, Any]:
    """Two starts, one after the other: with 5,000 Services beside the scene's, then with the scene's alone."""
    many = objects_file(SCRATCH / "live.many.json", [*owners.objects(SERVICES), *cluster()])
    few = objects_file(SCRATCH / "live.few.json", cluster())
    first = observe(f"{SERVICES:,} Services", many, (), report)
    return {"services": first, "alone": observe("live", few, RATES, report)}
