# SPDX-License-Identifier: Apache-2.0
"""Under load: no unrelated packet is shown, matching packets are counted exactly, and what does not fit is left out whole."""

from __future__ import annotations

import time
from collections import Counter

from scenes import load, topology, traffic
from tests.kernel.watching import NOTHING, SETTLE_SECONDS, Watch
from tests.support.builders import PARTS
from tracer.model.filter import Filter
from tracer.model.hop import HookHop
from tracer.model.loss import LEFT_OUT

RATE, SECONDS, REQUESTS = 20_000, 3.0, 50
UNSERVED, TOO_MANY = 9, 15_000
COLUMNS = ("packet", "kind", "hop")


def test_exact_count_beside_unrelated_traffic(watch: Watch) -> None:
    with watch(Filter(ports=(traffic.NODEPORT_UDP,))) as seen:
        stream = load.udp_stream(RATE, SECONDS)
        answered = [traffic.udp_ask(topology.NODE4, traffic.NODEPORT_UDP).outcome for _ in range(REQUESTS)]
        sent = stream.result()
    assert answered == ["answered"] * REQUESTS
    assert sent.packets > 10 * REQUESTS, "hardly any unrelated packets were sent"
    requests = [p for p in seen.packets if p.endpoints.dport == traffic.NODEPORT_UDP]
    replies = [p for p in seen.packets if p.flow and p.flow.is_reply]
    assert (len(requests), len(replies), len(seen.packets)) == (REQUESTS, REQUESTS, 2 * REQUESTS)
    assert not seen.losses and all(p.complete for p in seen.packets)


def test_same_datagram_again_and_again(watch: Watch) -> None:
    """Identical datagrams of one flow reuse the same buffers: each must still be its own packet."""
    with watch(Filter(ports=(traffic.NODEPORT_UDP,))) as seen:
        for _ in range(40):
            assert traffic.udp_ask(sport=40404).outcome == "answered"
    assert len(seen.packets) == 80
    assert {
        len([h for h in p.hops if isinstance(h, HookHop) and h.hook == "PREROUTING" and h.netns == "node"])
        for p in seen.packets
    } == {1}


def test_packets_that_do_not_fit_are_left_out_whole(watch: Watch) -> None:
    """While the ring is not read: each packet has all its events or none, and each is counted."""
    watch.session.drain()
    watch.session.losses()
    watch.session.set_filter(Filter(ports=(UNSERVED,)))
    before = load.drained()
    while load.drained() - before < TOO_MANY:
        load.udp_blast(1.0, topology.DRAIN4, UNSERVED).result()
    time.sleep(SETTLE_SECONDS)
    watch.session.set_filter(NOTHING)
    forwarded = load.drained() - before
    events = watch.session.events()
    lost: Counter[str] = Counter()
    for loss in watch.session.losses():
        lost[loss.probe] += loss.count
    parts = [int(kind) for kind in PARTS]
    hops = [
        (packet, hop) for packet, kind, hop in zip(*(events[n].tolist() for n in COLUMNS), strict=True) if kind not in parts
    ]
    # Counted without numpy's sort, which an emulator's AVX2 gets wrong (docs/kernel-facts.md).
    counts, last = Counter(packet for packet, _ in hops), dict(hops)
    print(f"{forwarded} forwarded, {len(counts)} reported, lost: {lost}, events: {Counter(counts.values())}")
    assert lost.keys() == {LEFT_OUT} and len(counts) + lost[LEFT_OUT] == forwarded
    assert {packet: hop + 1 for packet, hop in last.items()} == counts
    assert len(Counter(counts.values())) <= 2, "the first packet of a connection has more events"
