# SPDX-License-Identifier: Apache-2.0
"""Hostile text as the value of a label: bounded, valid UTF-8, without control characters."""

from __future__ import annotations

import pytest

from tracer.metrics.label_value import MOST_CHARACTERS, NONE, label_value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("default", "default"),
        ("", NONE),
        ('a"b', 'a"b'),
        ("a\nb\x1b[2J", "a\\nb\\x1b[2J"),
        ("\udcff", "\\xff"),
        ("\u202egnp", "\\u202egnp"),
        ("ü中", "ü中"),
    ],
)
def test_values(text: str, value: str) -> None:
    assert label_value(text) == value
    value.encode()


@pytest.mark.parametrize("text", ["x" * 10_000, "\x00" * 10_000, "中" * 10_000, "\udc80" * 10_000])
def test_a_long_value_is_cut(text: str) -> None:
    value = label_value(text)
    assert len(value) == MOST_CHARACTERS and value.endswith("…") and value.isprintable()
    assert label_value("x" * MOST_CHARACTERS) == "x" * MOST_CHARACTERS
