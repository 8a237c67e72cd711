# SPDX-License-Identifier: Apache-2.0
"""The sentence of a likely cause."""

from __future__ import annotations

from tracer.model.finding import likely_cause


def test_a_certain_cause_is_as_it_is() -> None:
    assert likely_cause("Answers leave node b.", "") == "Answers leave node b."


def test_a_likely_cause_says_why_it_is_not_certain() -> None:
    assert likely_cause("Answers leave node b.", "Only one was seen.") == "Perhaps answers leave node b. Only one was seen."
