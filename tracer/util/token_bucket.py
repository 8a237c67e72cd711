# SPDX-License-Identifier: Apache-2.0
"""A limit of a rate that allows bursts."""

from __future__ import annotations


class TokenBucket:
    """Holds tokens: one is taken for each thing that is done, and new ones come with time.

    Args:
        most: Tokens that it holds at most, and at the beginning.
        per_second: Tokens that come in a second.
        now: A monotonic time, s; all later times are of the same clock.
    """

    def __init__(self, most: float, per_second: float, now: float) -> None:
        self._most, self._per_second = most, per_second
        self._tokens, self._at = most, now

    def has_one(self, now: float) -> bool:
        """Whether a token could be taken now."""
        self._tokens = min(self._most, self._tokens + max(0.0, now - self._at) * self._per_second)
        self._at = now
        return self._tokens >= 1

    def take(self, now: float) -> bool:
        """Takes a token. Returns whether there was one."""
        if not self.has_one(now):
            return False
        self._tokens -= 1
        return True
