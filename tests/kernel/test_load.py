"""Under load: nothing unrelated is shown, and what matches is counted exactly."""

from __future__ import annotations

from scenes import load, topology, traffic
from tests.kernel.watching import Watch
from tracer.filters import Filter

RATE, SECONDS, ASKED = 20_000, 3.0, 50


def test_exact_count_beside_unrelated_traffic(watch: Watch) -> None:
    with watch(Filter(ports=(traffic.NODEPORT_UDP,))) as seen:
        stream = load.udp_stream(RATE, SECONDS)
        answered = [traffic.udp_ask(topology.NODE4, traffic.NODEPORT_UDP).outcome for _ in range(ASKED)]
        sent = stream.result()
    assert answered == ["answered"] * ASKED
    assert sent.packets > RATE / 2, f"only {sent.packets} unrelated packets were sent"
    questions = [p for p in seen.packets if p.endpoints.dport == traffic.NODEPORT_UDP]
    answers = [p for p in seen.packets if p.flow and p.flow.is_reply]
    assert (len(questions), len(answers), len(seen.packets)) == (ASKED, ASKED, 2 * ASKED)
    assert not seen.losses and all(p.complete for p in seen.packets)


def test_same_datagram_again_and_again(watch: Watch) -> None:
    """Identical datagrams of one flow get the same buffers again: each must still be a packet of its own."""
    with watch(Filter(ports=(traffic.NODEPORT_UDP,))) as seen:
        for _ in range(40):
            assert traffic.udp_ask(sport=40404).outcome == "answered"
    assert len(seen.packets) == 80
    assert {
        len([h for h in p.hops if h.what == "hook" and h.hook == "PREROUTING" and h.netns == "node"]) for p in seen.packets
    } == {1}
