# SPDX-License-Identifier: Apache-2.0
"""Loss counters: what was added since the last reading, and between which moments it was lost."""

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
from tracer.kernel.bcc_program import BccProgram
from tracer.kernel.loss_counters import LossCounters
from tracer.kernel.probes import PROBES
from tracer.model.loss import NO_ROOM

CPUS = 2
COUNTERS = cstruct.dtype("records/loss_counters.h", "loss_counters")


class Given:
    """The counters' memory, and how often programs were skipped."""

    def __init__(self) -> None:
        fd = os.memfd_create("loss_counters")
        os.ftruncate(fd, CPUS * COUNTERS.itemsize)
        self.loss_counters = np.frombuffer(mmap.mmap(fd, CPUS * COUNTERS.itemsize), COUNTERS, CPUS)
        self.skipped = 0
        self.bpf = {b"loss_counters": SimpleNamespace(map_fd=fd)}
        self.functions = {PROBES[0].name: SimpleNamespace(fd=3)}

    def recursion_misses(self, fd: int) -> int:
        return self.skipped


def counters(given: Given, way: str) -> LossCounters:
    row = PlannedProbe(PROBES[0], "nf_hook_slow", "vmlinux", way, (), 2, "program")
    return LossCounters(cast(BccProgram, given), [row], CPUS)


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tracer.kernel.loss_counters.MISSES_SECONDS", 0.0)


def told(of: LossCounters) -> list[tuple[Any, ...]]:
    return [(loss.probe, loss.cpu, loss.count, loss.why) for loss in of.read()]


def test_only_what_is_new_is_told() -> None:
    given = Given()
    of = counters(given, "FEXIT")
    given.loss_counters["lost"][1, Kind.EVENT_TABLE] = 3
    assert told(of) == [("table", 1, 3, NO_ROOM)]
    given.loss_counters["lost"][1, Kind.EVENT_TABLE] = 5
    given.skipped = 1
    assert told(of) == [("table", 1, 2, NO_ROOM), ("hook", -1, 1, "another probe was running")]
    assert told(of) == []


def test_a_loss_lies_between_two_readings() -> None:
    given = Given()
    began = time.monotonic_ns()
    of = counters(given, "FEXIT")
    of.poll()
    before = time.monotonic_ns()
    given.skipped = 1
    of.poll()
    after = time.monotonic_ns()
    (loss,) = of.read()
    assert began <= loss.since <= before <= loss.until <= after, "not when it was told"
    assert not loss.numbered


def test_a_missed_return_may_be_older_than_the_reading_before() -> None:
    given = Given()
    of = counters(given, "KRETPROBE")
    given.loss_counters["kept"][0, 0] = CPUS
    assert told(of) == [], "as many may be under way"
    given.loss_counters["kept"][0, 0] = CPUS + 1
    (loss,) = of.read()
    assert (loss.probe, loss.count, loss.since) == ("hook", 1, 0) and loss.until
