# SPDX-License-Identifier: Apache-2.0
"""Evictions are counted by the name of the container, from every thread."""

from __future__ import annotations

import threading

from tracer.util.bounded_queue import BoundedQueue
from tracer.util.evictions import EvictionCounter, evictions, format_evictions
from tracer.util.lru_dict import LruDict


def test_evictions_are_counted_by_container() -> None:
    evictions.read()
    names: LruDict[int, str] = LruDict(2, "names")
    events: BoundedQueue[int] = BoundedQueue(3, "events")
    for number in range(10):
        names[number] = "x"
        events.append(number)
    assert evictions.read() == {"events": 7, "names": 8} and evictions.read() == {}


def test_several_threads_count() -> None:
    counter = EvictionCounter()

    def count() -> None:
        for _ in range(1000):
            counter.add("names")

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counter.read() == {"names": 4000}


def test_totals_are_not_taken_away() -> None:
    counter = EvictionCounter()
    for _ in range(2):
        counter.add("names", 3)
        counter.read()
    assert counter.totals() == {"names": 6} == counter.totals()


def test_one_line_for_the_log() -> None:
    assert format_evictions({"closed packets": 3, "names": 12}) == "evicted: 3 closed packets, 12 names"
    assert format_evictions({}) == "nothing was evicted"
