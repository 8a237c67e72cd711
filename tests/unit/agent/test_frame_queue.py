# SPDX-License-Identifier: Apache-2.0
"""The queue of an agent: nothing waits in a live run, nothing is lost uncounted."""

from __future__ import annotations

import threading
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import sample_packets
from tracer.agent.frame_queue import MOST_FRAMES, MOST_WAITING_BYTES, FrameQueue
from tracer.model.packet import Packet
from tracer.protocol.limits import MOST_BODY_BYTES
from tracer.protocol.messages import NEEDS_CREDIT, FrameKind

PACKET = sample_packets.node_port()


def test_without_credit_what_does_not_fit_is_counted_by_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    now = PACKET.hops[0].time + 1_000_000_000
    monkeypatch.setattr("tracer.agent.frame_queue.time.monotonic_ns", lambda: now)
    queue = FrameQueue(most=80)
    for _ in range(1000):
        queue.put(FrameKind.PACKET, PACKET)
    for _ in range(15):
        queue.put(FrameKind.FINDING, b"{}")
    assert len(queue) == 80
    entries, shed = queue.read(1000, 0)
    assert not entries and shed and shed.frames == {"packet": 1000 - 70, "finding": 5}
    assert (shed.since, shed.until) == (PACKET.hops[0].time, now)
    assert queue.read(1000, 0) == ([], None)
    queue.add_credit(10)
    entries, shed = queue.read(1000, 0)
    assert len(entries) == 10 // MOST_FRAMES and queue.credit == 0 and shed is None


def test_the_end_of_a_run_needs_no_credit_and_keeps_its_place() -> None:
    queue = FrameQueue()
    queue.put(FrameKind.BEGIN, b"1")
    queue.put(FrameKind.PACKET, PACKET)
    queue.put(FrameKind.END, b"2")
    assert [entry.kind for entry in queue.read(10, 0)[0]] == [FrameKind.BEGIN]
    assert queue.read(10, 0) == ([], None)
    queue.shed_rest()
    entries, shed = queue.read(10, 0)
    assert [entry.kind for entry in entries] == [FrameKind.END] and shed and shed.frames == {"packet": 1}


def test_encoded_results_have_a_bound_in_bytes() -> None:
    queue, body = FrameQueue(), bytes(MOST_BODY_BYTES)
    for _ in range(20):
        queue.put(FrameKind.TIMELINE, body)
    assert len(queue) == MOST_WAITING_BYTES // MOST_BODY_BYTES
    assert (shed := queue.read(1, 0)[1]) and shed.frames == {"timeline": 20 - len(queue)}


def test_a_capture_waits_for_room_and_a_live_run_does_not() -> None:
    queue = FrameQueue(most=8)
    done: list[bool] = []
    thread = threading.Thread(target=lambda: done.extend(queue.put_waiting(FrameKind.CAPTURE, b"x") for _ in range(20)))
    thread.start()
    queue.add_credit(1000)
    taken = 0
    while thread.is_alive() or len(queue):
        taken += len(queue.read(100, 0.05)[0])
    assert taken == 20 and done == [True] * 20
    queue.end()
    assert not queue.put_waiting(FrameKind.CAPTURE, b"x")


def test_a_replay_waits_and_ends_with_the_stream() -> None:
    queue = FrameQueue(waits=True, most=8)

    def put_many() -> None:
        for _ in range(100):
            queue.put(FrameKind.PACKET, PACKET)

    thread = threading.Thread(target=put_many)
    thread.start()
    queue.add_credit(40)
    taken = 0
    while taken < 20:
        taken += len(queue.read(100, 0.05)[0])
    assert thread.is_alive()
    queue.end()
    thread.join(10)
    assert not thread.is_alive() and queue.read(1, 0) == ([], None)


KINDS = st.sampled_from([FrameKind.PACKET, FrameKind.FINDING, FrameKind.NOTE, FrameKind.SUMMARY, None])


@settings(max_examples=200, deadline=None)
@given(st.lists(KINDS, max_size=200), st.integers(8, 40))
def test_each_result_is_sent_or_counted(steps: list[FrameKind | None], most: int) -> None:
    queue, given_, sent, shed_count = FrameQueue(most=most), Counter[str](), Counter[str](), Counter[str]()

    def read() -> None:
        entries, shed = queue.read(7, 0)
        sent.update(entry.kind.name.lower() for entry in entries)
        shed_count.update(shed.frames if shed else {})

    for kind in steps:
        if kind is None:
            queue.add_credit(4)
            read()
        else:
            content: Packet | bytes = PACKET if kind is FrameKind.PACKET else b"{}"
            queue.put(kind, content)
            given_[kind.name.lower()] += 1
    queue.shed_rest()
    while len(queue):
        read()
    read()
    assert given_ == sent + shed_count
    assert all(FrameKind[name.upper()] in NEEDS_CREDIT for name in shed_count)
