# SPDX-License-Identifier: Apache-2.0
"""Packets of a softirq that interrupts a program: the kernel skips that program for them, and another one handles them."""

from __future__ import annotations

import time
from collections import Counter

import pytest

from scenes import load, traffic
from tests.kernel.interrupts import sent_by_a_timer
from tests.kernel.watching import NOTHING, Seen, Watch
from tracer.kernel.loss_counters import SKIPPED
from tracer.kernel.program_pairs import MOST_SECONDS, SKIPS
from tracer.kernel.session import Session
from tracer.model.filter import Filter
from tracer.model.hop import HookHop

RATE, REQUESTS, LONG = 20_000, 40, 60.0
BURST, BURSTS = 2.0, 30
"""Length of a burst, s, and most bursts until programs were skipped in two of them."""
MOST_MISSED = 0.02
"""Most calls that no program handles, as a share of those that first programs handle."""
SELECTED = Filter(ports=(traffic.NODEPORT_UDP,))


def requested(watch: Watch) -> Seen:
    """What is seen of some requests to a NodePort."""
    with watch(SELECTED) as seen:
        for _ in range(REQUESTS):
            assert traffic.udp_ask().outcome == "answered"
    return seen


def skipped(session: Session) -> int:
    """Number of calls since the last one for which no program acted."""
    return sum(loss.count for loss in session.losses() if loss.why == SKIPPED)


def hooks(seen: Seen) -> Counter[tuple[str, ...]]:
    """The hooks that the requests passed, with their numbers of packets."""
    return Counter(tuple(str(h.hook) for h in p.hops if isinstance(h, HookHop)) for p in seen.packets)


def has_pairs(session: Session) -> bool:
    """Sends bursts until programs were skipped in two of them, and waits for the pairs.

    Nothing is sent while they are attached: see "Traps" in vagrant/README.md about code that is replaced while it runs.
    """
    counts: list[int] = []
    while sum(count > 0 for count in counts) < SKIPS and len(counts) < BURSTS:
        load.udp_stream(RATE, BURST).result()
        counts.append(skipped(session))
    began = time.monotonic()
    while not session.pairs.are_on and time.monotonic() < began + MOST_SECONDS:
        time.sleep(0.1)
        session.losses()
    print(f"skipped in each burst: {counts}; on: {session.pairs.are_on}, after {time.monotonic() - began:.1f} s")
    return session.pairs.are_on


@pytest.mark.matrix
def test_calls_within_a_call(watch: Watch) -> None:
    # Kernel commit ca06f55b9002 (5.12); before it the kernel runs a program within itself: test_inner_calls.py.
    if watch.kernel.types.vmlinux.field("bpf_prog", "active") is None:
        pytest.skip("this kernel does not skip a program that is running")
    with Session(watch.kernel, NOTHING) as session:
        if not any(row.way == "FEXIT" for row in session.planned):
            pytest.skip("no trampolines here")
        own = Watch(watch.kernel, session)
        quiet = hooks(requested(own))
        with sent_by_a_timer():
            session.set_filter(SELECTED)
            assert has_pairs(session)
            stream = load.udp_stream(RATE, LONG)
            time.sleep(1.0)
            skipped(session)
            before = session.nested_calls
            busy = requested(own)
            handled, missed = session.nested_calls - before, sum(x.count for x in busy.losses if x.why == SKIPPED)
            stream.kill()
    print(f"second programs were skipped for {handled} calls that first ones handled, {missed} calls were missed", hooks(busy))
    assert handled > REQUESTS and missed <= MOST_MISSED * handled and session.pairs.are_on
    assert hooks(busy) == quiet
