# SPDX-License-Identifier: Apache-2.0
"""What each probe costs: the kernel's own record of how often every program ran and for how long.

The kernel's clock reads around each run cost time too (kernel.bpf_stats_enabled), so these runs give no throughput. What
is not in the figures: the trampoline or breakpoint that leads to a program.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.throughput import blast
from bench.tools import OTHER_PORT, Tracer

_STATS = Path("/proc/sys/kernel/bpf_stats_enabled")


def of(tracer: Tracer, command: str, seconds: float) -> list[dict[str, Any]]:
    """One row a program that ran, costliest first. command: "port N" or "everything" (bench/worker.py).

    per_packet: runs a packet sent. ns: of one run. ns_per_packet: both together.
    """
    with tracer.on(command) as running:
        before = tracer.ask("times")
        sent = blast(seconds, running)
        after = tracer.ask("times")
    packets, rows = sent.sent * sent.seconds, []
    for name, (ns, runs) in after.items():
        ns, runs = ns - before[name][0], runs - before[name][1]
        if runs:
            rows.append({"program": name, "per_packet": runs / packets, "ns": ns / runs, "ns_per_packet": ns / packets})
    return sorted(rows, key=lambda row: -float(row["ns_per_packet"]))


def run(seconds: float) -> dict[str, Any]:
    """The tables of both filters, for the ways the tracer chooses. Needs throughput.flow() around it."""
    tracer = Tracer("")
    _STATS.write_text("1")
    try:
        return {"other port": of(tracer, f"port {OTHER_PORT}", seconds), "every packet": of(tracer, "everything", seconds)}
    finally:
        _STATS.write_text("0")
        tracer.close()
