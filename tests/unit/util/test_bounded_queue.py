# SPDX-License-Identifier: Apache-2.0
"""A bounded queue keeps the newest entries and counts the others."""

from __future__ import annotations

from tracer.util.bounded_queue import BoundedQueue


def test_the_oldest_entry_is_evicted_first_and_counted() -> None:
    queue: BoundedQueue[int] = BoundedQueue(3, "numbers")
    queue.extend(range(3))
    assert queue.evicted == 0
    queue.append(3)
    queue.extend([4, 5])
    assert (queue.read(), queue.evicted, queue.read()) == ([3, 4, 5], 3, [])
    queue.append(6)
    assert (list(queue), queue.evicted) == ([6], 3)
