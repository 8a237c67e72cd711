# SPDX-License-Identifier: Apache-2.0
"""Loss counters: the losses since the last reading, and the interval of each loss."""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from tracer.events import cstruct
from tracer.events.record import Kind
from tracer.kernel.attach_plan import PlannedProbe
from tracer.kernel.loaded_programs import LoadedPrograms
from tracer.kernel.loss_counters import MOST_TWICE, REPLACED, SHED, SKIPPED, TWICE, LossCounters
from tracer.kernel.probes import PROBES
from tracer.model.loss import FAILURES_LEFT_OUT, NO_ROOM, OPENINGS_LEFT_OUT, RING_NEARLY_FULL, SHED_KINDS

CPUS = 2
SECOND = 17
"""Descriptor of a second program."""
COUNTERS = cstruct.dtype("records/loss_counters.h", "loss_counters")


class FakeProgram:
    """The counters' memory, and how often programs were skipped."""

    def __init__(self) -> None:
        fd = os.memfd_create("loss_counters")
        os.ftruncate(fd, CPUS * COUNTERS.itemsize)
        self.loss_counters = np.frombuffer(mmap.mmap(fd, CPUS * COUNTERS.itemsize), COUNTERS, CPUS)
        self.skipped = self.second_skipped = 0
        self.maps = {"loss_counters": SimpleNamespace(fd=fd)}
        self.functions = {PROBES[0].name: 3}
        self.on_further_reading: Callable[[], None] = lambda: None

    def miss_counters(self, fds: list[int]) -> SimpleNamespace:
        def read() -> list[int]:
            return [self.second_skipped if fd == SECOND else self.skipped for fd in fds]

        def read_one(place: int) -> int:
            self.on_further_reading()
            return read()[place]

        return SimpleNamespace(read=read, read_one=read_one)


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


def with_second(program: FakeProgram) -> LossCounters:
    """Counters of a row with a pair of programs that is on."""
    reader = counters(program, "FEXIT")
    program.skipped, program.second_skipped = 4, 2  # the second one was not on yet
    assert read_losses(reader) == [("hook", -1, 4, SKIPPED)] and reader.skips == 1
    reader.count_seconds({0: SECOND})
    assert read_losses(reader) == [("hook", -1, 2, SKIPPED)] and reader.skips == 2
    return reader


def test_calls_that_the_first_program_handled_are_no_loss() -> None:
    program = FakeProgram()
    reader = with_second(program)
    program.skipped = 900  # for calls that the second program handled
    program.second_skipped, program.loss_counters["nested"][0, 0], program.loss_counters["nested"][1, 0] = 7, 3, 2
    assert read_losses(reader) == [] and reader.skips == 2
    program.second_skipped, program.loss_counters["nested"][1, 0] = 10, 4
    assert read_losses(reader) == [("hook", -1, 1, SKIPPED)] and reader.skips == 3
    program.second_skipped, program.loss_counters["nested"][1, 0] = 22, 16
    assert read_losses(reader) == [] and not reader.is_doubtful


def test_a_loss_that_seems_to_end_is_a_call_that_was_handled_twice() -> None:
    program = FakeProgram()
    reader = with_second(program)
    program.second_skipped = 3
    assert read_losses(reader) == [("hook", -1, 1, SKIPPED)]
    program.second_skipped, program.loss_counters["nested"][0, 0] = 4, 2
    assert read_losses(reader) == [("hook", -1, 1, TWICE)] and reader.skips == 3
    program.second_skipped = 5
    assert read_losses(reader) == [("hook", -1, 1, SKIPPED)]
    program.loss_counters["nested"][1, 0] = 5
    assert read_losses(reader) == [("hook", -1, 5, TWICE)] and not reader.is_doubtful


def test_calls_that_come_during_a_reading_are_no_loss() -> None:
    program = FakeProgram()
    reader = with_second(program)

    def handle_all() -> None:
        program.loss_counters["nested"][0, 0] = program.second_skipped - 2

    program.second_skipped, program.on_further_reading = 9, handle_all
    assert read_losses(reader) == []
    program.second_skipped, program.on_further_reading = 12, lambda: None
    assert read_losses(reader) == [("hook", -1, 3, SKIPPED)]


def test_programs_that_run_in_another_order() -> None:
    program = FakeProgram()
    reader = with_second(program)
    program.loss_counters["nested"][0, 0] = MOST_TWICE + 1
    assert read_losses(reader) == [("hook", -1, MOST_TWICE + 1, TWICE)] and reader.is_doubtful
    program.second_skipped += 3 * MOST_TWICE  # the first program handled nearly all of them: the order is the expected one
    program.loss_counters["nested"][0, 0] += 3 * MOST_TWICE
    assert read_losses(reader) == [] and not reader.is_doubtful
    reader.count_seconds({})
    program.skipped += 3
    assert read_losses(reader) == [("hook", -1, 3, SKIPPED)]


def test_calls_while_the_probe_was_replaced_are_lost() -> None:
    program = FakeProgram()
    reader = counters(program, "FEXIT")
    program.loss_counters["unhandled"][:, 0] = 2, 3
    assert read_losses(reader) == [("hook", -1, 5, REPLACED)] and reader.skips == 0
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
