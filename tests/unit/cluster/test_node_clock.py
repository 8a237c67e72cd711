# SPDX-License-Identifier: Apache-2.0
"""A node's clock from round trips: the true offset is within the error, whatever the network does."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from tracer.cluster.node_clock import MOST_OPEN, MOST_SAMPLES, NodeClock

SECOND, MS = 1_000_000_000, 1_000_000
TRIPS = st.lists(
    st.tuples(st.integers(0, 500 * MS), st.integers(0, 5 * SECOND), st.integers(0, 500 * MS)), min_size=1, max_size=80
)


@example(0, 81, [(0, 0, 234604939)], 0)  # the clocks also drift apart during the round trip
@given(st.integers(-10 * SECOND, 10 * SECOND), st.integers(-90, 90), TRIPS, st.integers(0, 300 * SECOND))
def test_the_true_offset_is_within_the_error(ahead: int, drift_ppm: int, trips: list[tuple[int, int, int]], lag: int) -> None:
    """ahead: client minus node at the start; trips: time to the node, in it, and back, each ping a second after the other; lag:
    how old a packet is, which may have passed before the first ping."""
    clock, now = NodeClock(), 1000 * SECOND
    began = now
    clock.packets = 7 * SECOND

    def of_node(time: int) -> int:
        return time - ahead + (time - began) * drift_ppm // 1_000_000

    for number, (there, inside, back) in enumerate(trips, 1):
        clock.ask(number, now)
        received, sent = of_node(now + there), of_node(now + there + inside)
        now += there + inside + back
        clock.answer(number, received, sent, now)
        now += SECOND
    offset, error = clock.read(now)
    true_offset = now - (of_node(now) + 7 * SECOND)
    assert offset is not None and abs(offset - true_offset) <= error
    assert error >= min(there + back for there, _, back in trips) // 2
    passed = of_node(now - lag)
    offset, error = clock.of_packet(passed + 7 * SECOND)
    assert offset is not None and abs(offset - (now - lag - passed - 7 * SECOND)) <= error
    assert clock.shift(passed) == (offset + 7 * SECOND, error)


def test_the_shortest_round_trip_decides() -> None:
    clock = NodeClock()
    clock.packets = 0
    for number, delay in ((1, 80 * MS), (2, 2 * MS), (3, 500 * MS)):
        clock.ask(number, number * SECOND)
        clock.answer(number, number * SECOND, number * SECOND, number * SECOND + delay)
    offset, error = clock.read(3 * SECOND + 500 * MS)
    assert offset == MS and error < 2 * MS


def test_answers_to_no_question_and_impossible_ones_are_ignored() -> None:
    clock = NodeClock()
    clock.packets = 0
    clock.answer(1, 5, 6, 7)
    clock.ask(2, 10)
    clock.answer(2, 9, 8, 12)  # sent before it was received
    clock.ask(3, 20)
    clock.answer(3, 0, 1 << 60, 30)  # longer inside the node than the whole trip
    assert clock.read(40) == (None, 0)
    clock.ask(4, 50)
    clock.answer(4, 55, 55, 60)
    clock.answer(4, 55, 55, 60)
    assert clock.read(60)[0] == 0


def test_without_a_packet_clock_nothing_is_known() -> None:
    clock = NodeClock()
    clock.ask(1, 1)
    clock.answer(1, 1, 1, 1)
    assert clock.read(2) == (None, 0)


def test_a_node_that_never_answers_costs_no_memory() -> None:
    clock = NodeClock()
    for number in range(10 * MOST_OPEN):
        clock.ask(number, number)
    clock.answer(1, 1, 1, 2)  # forgotten long ago
    assert len(clock._open) == MOST_OPEN
    for number in range(10 * MOST_SAMPLES):
        clock.ask(number, number)
        clock.answer(number, number, number, number)
    assert len(clock._samples) == MOST_SAMPLES
