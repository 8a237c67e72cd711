# SPDX-License-Identifier: Apache-2.0
"""A sending process is moved to another processor after a table's rules: the rules that its packet met are still known."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from scenes import rules
from scenes.topology import CLIENT4
from tests.kernel.watching import Watch
from tests.support import hop_fields
from tracer.model.filter import Filter
from tracer.model.hop import trace_of

PORT, DATAGRAMS = 9753, 150
RULES = f"""*filter
:INPUT ACCEPT [0:0]
:FORWARD ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
-A OUTPUT -p udp -m udp --dport {PORT} -m limit --limit 10000/sec --limit-burst 10000 -j RETURN
-A OUTPUT -p udp -m udp --dport {PORT} -j DROP
COMMIT
"""
BUSY = """
import os, sys, time
cpu = int(sys.argv[1])
os.sched_setaffinity(0, {cpu})
os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
last = time.monotonic() + 60
while (now := time.monotonic()) < last:
    if int(now / 0.003) % 2 == cpu % 2:
        time.sleep(0.0005)
"""
"""Keeps one processor busy for 3 ms in 6, ahead of all other processes: they move to another processor, and come back."""


@pytest.fixture
def table(watch: Watch) -> Iterator[None]:
    """The rules above; restores the plain ones afterwards."""
    rules.flush()
    rules.restore_text(RULES, 4, "legacy")
    yield
    rules.flush()
    rules.restore("http-proxy", "http-proxy-v6")


@contextmanager
def moving() -> Iterator[None]:
    """Within the block, processes are moved from one of two processors to the other, again and again."""
    busy = [subprocess.Popen([sys.executable, "-c", BUSY, str(cpu)]) for cpu in (0, 1)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


@pytest.mark.matrix
def test_a_table_that_returns_on_another_processor(watch: Watch, table: None) -> None:
    with watch(Filter(ports=(PORT,))) as seen, moving(), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for _ in range(DATAGRAMS):
            sock.sendto(b"?", (CLIENT4, PORT))
    traces = [
        trace_of(h)
        for p in seen.packets
        for h in p.hops
        if (h.kind, hop_fields.table(h), h.hook) == ("table", "filter", "OUTPUT")
    ]
    outcomes = Counter(w.undecided or "decided" for w in traces if w)
    print(outcomes)
    assert "the table was not watched while it ran" not in outcomes, outcomes
    assert outcomes["decided"] > DATAGRAMS // 2, outcomes
