# SPDX-License-Identifier: Apache-2.0
"""What the probes write for a reader that takes less: failures without openings, or nothing. What is left out is counted."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from scenes import servers, topology, traffic
from tests.kernel.watching import SETTLE_SECONDS, Seen, Watch
from tracer.model.detail import Detail
from tracer.model.filter import Filter
from tracer.model.loss import FAILURES_LEFT_OUT, LEFT_OUT, OPENINGS_LEFT_OUT

PORTS = (traffic.NODEPORT_HTTP, traffic.NODEPORT_LONELY)
QUEUE_PORT = 8097


@contextmanager
def watching(watch: Watch, detail: Detail, *ports: int) -> Iterator[Seen]:
    """Watches failures and openings; packets that begin in the block are written with this detail."""
    watch.session.set_detail(detail)
    try:
        with watch(Filter(ports=ports or PORTS, drops_only=True)) as seen:
            yield seen
            time.sleep(SETTLE_SECONDS)
    finally:
        watch.session.set_detail(Detail.WHOLE)


def left_out(seen: Seen) -> Counter[str]:
    """Number of packets by the reason why they were left out. Nothing else was lost."""
    found: Counter[str] = Counter()
    for loss in seen.losses:
        assert loss.probe == LEFT_OUT, loss
        found[loss.why] += loss.count
    return found


def requests() -> None:
    assert traffic.http_get().outcome == "answered"
    assert traffic.tcp_connect(topology.NODE4, traffic.NODEPORT_LONELY).outcome == "refused"


def test_openings_are_left_out_and_their_failures_are_incomplete(watch: Watch) -> None:
    with watching(watch, Detail.FAILURES) as seen:
        requests()
    counts = left_out(seen)
    print(counts, *(p.verdict for p in seen.packets), sep="\n")
    failed = [p for p in seen.packets if p.endpoints.dport == traffic.NODEPORT_LONELY]
    assert {(p.outcome, p.complete) for p in failed} == {("rejected", False)}
    # Failures of the end of the request, as a packet for a closed socket, are written, too.
    assert not any(p.tcp_flags in ("SYN", "SYN ACK") for p in seen.packets if p not in failed)
    # The SYN and its answer, and the SYN that is rejected.
    assert counts[OPENINGS_LEFT_OUT] >= 3 and not counts[FAILURES_LEFT_OUT]


def test_a_full_accept_queue_is_a_failure(watch: Watch) -> None:
    full = servers.Server("pod-a", "pod-a", http=QUEUE_PORT, udp=5397, accept=False, backlog=2)
    pod = topology.PODS[0].addr4
    with (
        servers.running([full]),
        traffic.connections(pod, QUEUE_PORT, 3),
        watching(watch, Detail.FAILURES, QUEUE_PORT) as seen,
    ):
        assert traffic.tcp_connect(pod, QUEUE_PORT, timeout=0.7).outcome == "timeout"
    syns = [p for p in seen.packets if p.tcp_flags == "SYN"]
    print(left_out(seen), *(p.verdict for p in seen.packets), sep="\n")
    assert {p.verdict for p in syns} == {"SYN dropped: accept queue 3/2 in pod-a"} and not any(p.complete for p in syns)
    assert left_out(seen)[OPENINGS_LEFT_OUT] >= 1


def test_nothing_is_written_and_each_kind_is_counted(watch: Watch) -> None:
    with watching(watch, Detail.NOTHING) as seen:
        requests()
    print(left_out(seen))
    assert not seen.packets and left_out(seen)[OPENINGS_LEFT_OUT] >= 3


def test_all_is_written_again(watch: Watch) -> None:
    with watching(watch, Detail.NOTHING):
        requests()
    with watching(watch, Detail.WHOLE) as seen:
        requests()
    assert not seen.losses and all(p.complete for p in seen.packets)
    assert {p.endpoints.dport for p in seen.packets} >= {traffic.NODEPORT_LONELY, traffic.NODEPORT_HTTP}
