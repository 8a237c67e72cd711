# SPDX-License-Identifier: Apache-2.0
"""Batches of the running kernel: the memory of a burst is returned after it."""

from __future__ import annotations

from typing import cast

import numpy as np
import pytest

from tracer.events.record import DTYPE, EventArray
from tracer.kernel.session import Session
from tracer.pipeline.live_source import FEW_EVENTS, MANY_EVENTS, LiveSource
from tracer.util import memory


class FakeSession:
    """Replaces a session: batches of these sizes."""

    def __init__(self, sizes: list[int]) -> None:
        self.sizes = sizes

    def events(self) -> EventArray:
        return np.zeros(self.sizes.pop(0), DTYPE)

    def losses(self) -> list[object]:
        return []


def returned(monkeypatch: pytest.MonkeyPatch, *sizes: int) -> list[int]:
    """The numbers of the batches, from 0, at which memory was returned."""
    found: list[int] = []
    source, number = LiveSource(cast(Session, FakeSession(list(sizes)))), 0
    monkeypatch.setattr(memory, "return_free_pages", lambda: found.append(number))
    for number in range(len(sizes)):  # noqa: B007
        source.read()
    return found


def test_after_a_burst(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not while it lasts, and not while its last batch is still referenced."""
    assert returned(monkeypatch, MANY_EVENTS, FEW_EVENTS, 0, 0, 0) == [3]


def test_after_many_small_batches_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    small = [FEW_EVENTS - 1] * (2 * (MANY_EVENTS // (FEW_EVENTS - 1)) + 4)
    assert len(returned(monkeypatch, *small)) == 2


def test_not_for_a_few_events(monkeypatch: pytest.MonkeyPatch) -> None:
    assert returned(monkeypatch, *([FEW_EVENTS - 1] * 3), *([0] * 20)) == []
