# SPDX-License-Identifier: Apache-2.0
"""Pairs of programs: attached once, when programs are skipped again; off where the kernel runs them in another order."""

from __future__ import annotations

import errno
from collections.abc import Iterable, Mapping, Sequence
from typing import cast

import pytest

from tracer.kernel.attach_plan import PlannedProbe
from tracer.kernel.loaded_programs import LoadedPrograms
from tracer.kernel.loss_counters import LossCounters
from tracer.kernel.probes import PROBES
from tracer.kernel.program_pairs import DOUBTFUL, SKIPS, SKIPS_SECONDS, ProgramPairs
from tracer.util.worker import Warnings

ROWS = [PlannedProbe(probe, "nf_hook_slow", "vmlinux", "FEXIT", (), 2, "program") for probe in PROBES[:2]]
SECOND = 17
"""Descriptor of the second program of the first row; the other row has no pair."""


class Programs:
    """Keeps the rows that were to get a pair, and those whose pair is used."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.tried: list[Sequence[PlannedProbe]] = []
        self.on: list[list[PlannedProbe]] = []

    def attach_pairs(self, rows: Sequence[PlannedProbe]) -> dict[int, int]:
        self.tried.append(rows)
        if isinstance(self.error, KeyError):
            raise self.error
        return {ROWS[0].number: SECOND}

    def use_pairs(self, rows: Iterable[PlannedProbe]) -> None:
        self.on.append(list(rows))

    def use_single_programs(self, rows: Iterable[PlannedProbe]) -> None:
        self.on.append([])
        if isinstance(self.error, OSError):
            raise self.error


class Counters:
    """Keeps the second programs that are counted."""

    def __init__(self) -> None:
        self.skips, self.is_doubtful = 0, False
        self.counted: list[Mapping[int, int]] = []

    def count_seconds(self, seconds: Mapping[int, int]) -> None:
        self.counted.append(seconds)


def noted(programs: Programs, counters: Counters, *skips: int) -> ProgramPairs:
    """Takes a step after each of these numbers of readings with skipped programs, and one when the thread has ended."""
    pairs = ProgramPairs(cast(LoadedPrograms, programs), ROWS, cast(LossCounters, counters))
    for counters.skips in skips:
        pairs.note()
    pairs.close()
    pairs.note()
    return pairs


@pytest.mark.parametrize(("seconds", "tried"), [(SKIPS_SECONDS, 1), (SKIPS_SECONDS + 1, 0)])
def test_seldom_skips_are_no_reason(seconds: float, tried: int, monkeypatch: pytest.MonkeyPatch) -> None:
    programs, counters, now = Programs(), Counters(), 1000.0
    monkeypatch.setattr("tracer.kernel.program_pairs.time.monotonic", lambda: now)
    pairs = ProgramPairs(cast(LoadedPrograms, programs), ROWS, cast(LossCounters, counters))
    for counters.skips in range(1, SKIPS + 1):
        now += seconds
        pairs.note()
        pairs.note()
    pairs.close()
    assert len(programs.tried) == tried


def test_attached_once_when_programs_are_skipped_again() -> None:
    programs, counters = Programs(), Counters()
    assert not noted(programs, counters, 0, SKIPS - 1).are_on and not programs.tried
    assert noted(programs, counters, SKIPS - 1, SKIPS, SKIPS).are_on
    assert programs.tried == [ROWS] and programs.on == [ROWS[:1]] and counters.counted == [{ROWS[0].number: SECOND}]


@pytest.mark.parametrize("error", [None, OSError(errno.ENOMEM, "no memory")])
def test_off_where_they_run_in_another_order(error: OSError | None, monkeypatch: pytest.MonkeyPatch) -> None:
    warnings = Warnings()
    monkeypatch.setattr("tracer.kernel.program_pairs.user_warnings", warnings)
    programs, counters = Programs(error), Counters()
    pairs = noted(programs, counters, SKIPS)
    counters.is_doubtful = True
    pairs.note()
    pairs.note()
    assert not pairs.are_on and programs.on == [ROWS[:1], []] and counters.counted[1:] == [{}]
    first, *others = warnings.read()
    assert first == DOUBTFUL and len(others) == (error is not None)


def test_an_error_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    warnings = Warnings()
    monkeypatch.setattr("tracer.util.worker.user_warnings", warnings)
    programs, counters = Programs(KeyError("a row")), Counters()
    assert not noted(programs, counters, SKIPS).are_on and len(programs.tried) == 1 and not programs.on
    (warning,) = warnings.read()
    assert "pairs of probes" in warning
