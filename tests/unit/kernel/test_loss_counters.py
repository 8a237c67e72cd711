# SPDX-License-Identifier: Apache-2.0
"""Loss counters: the losses since the last reading, and the interval of each loss."""

from __future__ import annotations

import mmap
import os
import time
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from tracer.events import cstruct
from tracer.events.record import Kind
from tracer.kernel.attach_plan import PlannedProbe
from tracer.kernel.loaded_programs import LoadedPrograms
from tracer.kernel.loss_counters import SHED, LossCounters
from tracer.kernel.probes import PROBES
from tracer.model.loss import FAILURES_LEFT_OUT, NO_ROOM, OPENINGS_LEFT_OUT, RING_NEARLY_FULL, SHED_KINDS

CPUS = 2
COUNTERS = cstruct.dtype("records/loss_counters.h", "loss_counters")


class FakeProgram:
    """The counters' memory, and how often programs were skipped."""

    def __init__(self) -> None:
        fd = os.memfd_create("loss_counters")
        os.ftruncate(fd, CPUS * COUNTERS.itemsize)
        self.loss_counters = np.frombuffer(mmap.mmap(fd, CPUS * COUNTERS.itemsize), COUNTERS, CPUS)
        self.skipped = 0
        self.maps = {"loss_counters": SimpleNamespace(fd=fd)}
        self.functions = {PROBES[0].name: 3}

    def miss_counters(self, fds: list[int]) -> SimpleNamespace:
        return SimpleNamespace(read=lambda: [self.skipped] * len(fds))


def counters(program: FakeProgram, way: str) -> LossCounters:
    row = PlannedProbe(PROBES[0], "nf_hook_slow", "vmlinux", way, (), 2, "program")
    return LossCounters(cast(LoadedPrograms, program), [row], CPUS)


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tracer.kernel.loss_counters.MISSES_SECONDS", 0.0)


def read_losses(reader: LossCounters) -> list[tuple[Any, ...]]:
    return [(loss.probe, loss.cpu, loss.count, loss.why) for loss in reader.read()]


def test_only_new_losses_are_reported() -> None:
    program = FakeProgram()
    reader = counters(program, "FEXIT")
    program.loss_counters["lost"][1, Kind.EVENT_TABLE] = 3
    assert read_losses(reader) == [("table", 1, 3, NO_ROOM)]
    program.loss_counters["lost"][1, Kind.EVENT_TABLE] = 5
    program.skipped = 1
    assert read_losses(reader) == [("table", 1, 2, NO_ROOM), ("hook", -1, 1, "another probe was running")]
    assert read_losses(reader) == []


def test_packets_that_were_left_out_have_their_kind() -> None:
    program = FakeProgram()
    reader = counters(program, "FEXIT")
    for number, name in enumerate(SHED, 1):
        program.loss_counters["lost"][0, cstruct.define("records/loss_counters.h", name)] = number
    found = {loss.why: loss.count for loss in reader.read()}
    assert found == {RING_NEARLY_FULL: 1, OPENINGS_LEFT_OUT: 2, FAILURES_LEFT_OUT: 3} and found.keys() == SHED_KINDS.keys()


def test_a_loss_lies_between_two_readings() -> None:
    program = FakeProgram()
    began = time.monotonic_ns()
    reader = counters(program, "FEXIT")
    reader.poll()
    before = time.monotonic_ns()
    program.skipped = 1
    reader.poll()
    after = time.monotonic_ns()
    (loss,) = reader.read()
    assert began <= loss.since <= before <= loss.until <= after, "not at the time of the report"
    assert not loss.numbered


def test_a_missed_return_may_be_older_than_the_reading_before() -> None:
    program = FakeProgram()
    reader = counters(program, "KRETPROBE")
    program.loss_counters["kept"][0, 0] = CPUS
    assert read_losses(reader) == [], "one return per CPU may still be pending"
    program.loss_counters["kept"][0, 0] = CPUS + 1
    (loss,) = reader.read()
    assert (loss.probe, loss.count, loss.since) == ("hook", 1, 0) and loss.until
