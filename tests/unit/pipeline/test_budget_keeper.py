# SPDX-License-Identifier: Apache-2.0
"""The keeper of a budget: what it measures, tells the probes and says, and that a run with it counts what it leaves out."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from tests.support import captures
from tests.support.builders import Trail
from tests.unit.pipeline.test_event_shedding import packet
from tracer.events.record import NOTHING, Slots
from tracer.kernel.session import Session
from tracer.model.detail import Detail
from tracer.model.loss import FAILURES_LEFT_OUT, LEFT_OUT, OPENINGS_LEFT_OUT, Loss
from tracer.pipeline.budget_keeper import BudgetKeeper, processor_seconds
from tracer.pipeline.live_source import LiveSource
from tracer.pipeline.reader_budget import BudgetLimits
from tracer.util import memory
from tracer.util.reading_limit import reading_limit

SECOND = 1_000_000_000


@pytest.fixture(autouse=True)
def no_limit() -> Iterator[None]:
    yield
    reading_limit.text = ""


class FloodedProbes:
    """Replaces a session: each reading has this many packets, which began in the last second."""

    def __init__(self, packets: int) -> None:
        self.packets, self.details = packets, list[Detail]()

    def drain(self) -> Slots:
        now = time.monotonic_ns()
        batch = [packet(now - SECOND + n * 1000) for n in range(self.packets)]
        return captures.slots(np.concatenate(batch))

    def losses(self) -> list[Loss]:
        return [Loss("table", 0, 3, "full")]

    def set_detail(self, detail: Detail) -> None:
        self.details.append(detail)


def test_a_run_counts_what_it_leaves_out() -> None:
    """The packets of a reading that are too many for the budget are in its losses, beside those of the probes."""
    probes, used = FloodedProbes(400), iter(n * 1.0 for n in range(100))
    keeper = BudgetKeeper(BudgetLimits(cpu=0.02), probes.set_detail, lambda: next(used))
    keeper._shedder._before = 0
    source = LiveSource(cast(Session, probes), None, keeper)
    batch = source.read()
    left_out = [loss for loss in batch.losses if loss.probe == LEFT_OUT]
    assert [loss.why for loss in left_out] == [OPENINGS_LEFT_OUT] and Loss("table", 0, 3, "full") in batch.losses
    assert len(batch.events) == 3 * (400 - left_out[0].count) < 1200 and len(batch.events) >= 20


def test_the_probes_and_the_user_learn_each_change_once() -> None:
    probes, used = FloodedProbes(0), iter(n * 2.0 for n in range(100))
    keeper = BudgetKeeper(BudgetLimits(cpu=0.2), probes.set_detail, lambda: next(used))
    nothing, notes = np.zeros((0, 104), np.uint8), []
    for number in range(20):
        keeper.limited(nothing, number * 2 * SECOND)
        notes += keeper.notes()
        if probes.details:
            break
    assert probes.details == [Detail.FAILURES]
    exceeded = "The budget of 20 % of a processor is used up (100.0 % of a processor in the last seconds)"
    assert notes == [f"{exceeded}: openings are no longer written."]
    assert reading_limit.text == notes[0] and keeper.pause > 0.05


def test_memory_is_read_once_a_second_and_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    trimmed: list[None] = []
    monkeypatch.setattr(memory, "trim", lambda: trimmed.append(None))
    readings: list[None] = []

    def resident() -> int:
        readings.append(None)
        return 200_000_000

    keeper = BudgetKeeper(BudgetLimits(memory=150_000_000), lambda detail: None, lambda: 0.0, resident)
    for number in range(100):
        keeper.limited(np.zeros((0, 104), np.uint8), number * SECOND // 10)
    assert (
        len(readings) == 10 and len(trimmed) == 1 and keeper.notes()[0].startswith("The budget of 150 MB is used up (200 MB)")
    )


def test_the_figures_are_those_of_this_process() -> None:
    began, until = processor_seconds(), time.process_time() + 0.05
    while time.process_time() < until:
        pass
    assert 0.04 < processor_seconds() - began < 5
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    assert 0.5 < memory.resident_bytes() / (pages * os.sysconf("SC_PAGE_SIZE")) < 2


@pytest.mark.parametrize("why", ["", OPENINGS_LEFT_OUT, FAILURES_LEFT_OUT])
def test_nothing_is_concluded_from_what_was_left_out(tmp_path: Path, why: str) -> None:
    """The answer to a SYN may be among the packets that were left out after it."""
    syn = Trail(captures.CLIENT, 1 << 8, time.monotonic_ns(), in_name="eth0", out_name="cni0")
    batch = syn.hook("PREROUTING").hook("FORWARD").hook("POSTROUTING").batch
    losses = [Loss(LEFT_OUT, 0, 5, why)] if why else []
    made = captures.capture(tmp_path / "a.k8st", [(batch, []), (NOTHING, losses), (NOTHING, [])])
    assert made.summary.causes == {"not known" if why else "no answer": 1} and not made.summary.findings
