# SPDX-License-Identifier: Apache-2.0
"""Retry-After as servers and attackers write it."""

from __future__ import annotations

import pytest

from tracer.util.retry_after import retry_seconds


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30", 30),
        ("0", 0),
        ("", 0),
        ("-5", 0),
        ("1.5", 0),
        ("٣", 0),
        ("²", 0),
        ("9" * 5000, 0),
        ("Fri, 27 Nov 2026 07:00:00 GMT", 0),
    ],
)
def test_only_a_number_of_seconds_counts(text: str, seconds: int) -> None:
    assert retry_seconds(text) == seconds
