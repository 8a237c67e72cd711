# SPDX-License-Identifier: Apache-2.0
"""A limit of a rate: what it allows at once, and with time."""

from __future__ import annotations

from tracer.util.token_bucket import TokenBucket


def test_a_burst_and_then_the_rate() -> None:
    bucket = TokenBucket(3, 0.5, 100.0)
    assert [bucket.take(100.0) for _ in range(4)] == [True, True, True, False]
    assert not bucket.take(101.9) and not bucket.has_one(101.9) and bucket.has_one(102.0)
    assert bucket.take(102.0) and not bucket.take(102.0)
    assert [bucket.take(10_000.0) for _ in range(4)] == [True, True, True, False], "no more than it holds"


def test_a_clock_that_goes_back_gives_nothing() -> None:
    bucket = TokenBucket(1, 1, 100.0)
    assert bucket.take(100.0) and not bucket.take(50.0) and not bucket.take(50.5) and bucket.take(51.0)
