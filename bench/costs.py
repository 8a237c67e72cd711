# SPDX-License-Identifier: Apache-2.0
"""The cost of each probe: the kernel's own count of the runs of every program, and of their time.

The kernel's clock reads around each run also take time (kernel.bpf_stats_enabled), so these runs give no throughput. The
figures do not include the trampoline or breakpoint that calls a program.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.throughput import blast
from bench.tools import OTHER_PORT, Tracer

_STATS = Path("/proc/sys/kernel/bpf_stats_enabled")


def of(tracer: Tracer, command: str, seconds: float) -> list[dict[str, Any]]:
    """One row per program that ran, most expensive first. command: "port N" or "everything" (bench/worker.py).

    per_packet: runs per packet sent. ns: ns per run. ns_per_packet: their product.
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
    """The tables of both filters, with the tracer's choice of probe types. Needs throughput.flow() around it."""
    tracer = Tracer("")
    _STATS.write_text("1")
    try:
        return {"other port": of(tracer, f"port {OTHER_PORT}", seconds), "every packet": of(tracer, "everything", seconds)}
    finally:
        _STATS.write_text("0")
        tracer.close()
