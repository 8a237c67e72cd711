# SPDX-License-Identifier: Apache-2.0
"""The budget of a reader on an invented node: what is left out in a flood, in which order, and what comes back after it."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median

import pytest

from tracer.events import cstruct
from tracer.model.detail import Detail
from tracer.pipeline.reader_budget import (
    EVENTS_OF_PACKET,
    MOST_HOLD_SECONDS,
    MOST_PAUSE_SECONDS,
    PAUSE_SECONDS,
    SAMPLE_EVENTS,
    SAMPLE_PER_SECOND,
    WINDOW_READINGS,
    WINDOW_SECONDS,
    BudgetLimits,
    ReaderBudget,
    Reading,
)


@dataclass
class InventedNode:
    """A node with a reader. openings, failures: packets a second; idle: processor time of one reading, s;
    cost: of one event, s; draining: of one event that is left out, s."""

    budget: ReaderBudget
    openings: float = 0
    failures: float = 0
    idle: float = 0.0005
    cost: float = 100e-6
    draining: float = 0.3e-6
    memory: int = 0
    explained: int = 0
    now: float = 1000.0
    cpu: float = 0.0
    sentences: list[str] = field(default_factory=list)
    details: list[Detail] = field(default_factory=list)
    shares: list[float] = field(default_factory=list)
    _rest: tuple[float, float] = (0.0, 0.0)

    @property
    def detail(self) -> int:
        """What is written now."""
        return int(self.details[-1])

    def run(self, seconds: float) -> None:
        until, began, used = self.now + seconds, self.now, self.cpu
        while self.now < until:
            self._read()
            if self.now - began >= WINDOW_SECONDS:
                self.shares.append((self.cpu - used) / (self.now - began))
                began, used = self.now, self.cpu

    def _read(self) -> None:
        budget, pause = self.budget, self.budget.pause
        self.now += pause
        # Whole packets: the rest comes with the next reading.
        openings, failures = self.openings * pause + self._rest[0], self.failures * pause + self._rest[1]
        self._rest = openings % 1, failures % 1
        openings, failures = openings // 1, failures // 1
        written = {Detail.WHOLE: openings + failures, Detail.FAILURES: failures, Detail.NOTHING: 0.0}[budget.detail]
        events = int(written * EVENTS_OF_PACKET)
        left_out = int(openings + failures - written)
        explained = min(events, events if budget.most_events is None else budget.most_events)
        self.explained += explained
        self.cpu += self.idle + explained * self.cost + (events - explained) * self.draining
        reading = Reading(self.now, self.cpu, self.memory, explained, left_out, explained < events)
        if sentence := budget.measure(reading):
            self.sentences.append(sentence)
        self.details.append(budget.detail)


def test_the_details_are_those_of_the_probes() -> None:
    assert {each.name: int(each) for each in Detail} == dict(cstruct.members("records/ring.h", "detail"))


@pytest.mark.parametrize("idle", [0.002, 0.01, 0.02])
def test_a_reader_that_needs_its_budget_when_idle_explains_a_few_requests_after_a_flood(idle: float) -> None:
    """The idle work is not part of what an event costs, and it does not use up what the packets need."""
    node = InventedNode(ReaderBudget(BudgetLimits(cpu=0.2)), openings=5000, idle=idle, cost=1e-3)
    node.run(45)
    node.openings = 0
    node.run(90)
    assert node.detail == Detail.WHOLE and node.sentences[-1].endswith("openings are written again.")
    assert median(node.shares[-5:]) < 0.2 / 2, "the rest is for packets"
    before, seconds, node.openings = node.explained, 20, 4
    node.run(seconds)
    assert node.detail == Detail.WHOLE and node.explained - before >= 0.8 * 4 * seconds * EVENTS_OF_PACKET


def test_nothing_is_left_out_below_the_budget() -> None:
    node = InventedNode(ReaderBudget(BudgetLimits(cpu=0.2)), openings=50, failures=50)
    node.run(60)
    assert not node.sentences and set(node.details) == {Detail.WHOLE} and max(node.shares) < 0.2


def test_idle_work_above_the_budget_does_not_stop_the_packets() -> None:
    """Leaving packets out would not help."""
    node = InventedNode(ReaderBudget(BudgetLimits(cpu=0.02)), openings=2, idle=0.03)
    node.run(120)
    node.openings = 5000
    node.run(60)
    assert node.detail, "a flood is left out all the same"
    node.openings = 2
    node.run(120)
    before = node.explained
    node.run(60)
    assert node.detail == Detail.WHOLE and node.explained - before == pytest.approx(2 * 60 * EVENTS_OF_PACKET, rel=0.1)


def test_one_long_reading_is_not_taken_for_idle_work() -> None:
    node = InventedNode(ReaderBudget(BudgetLimits(cpu=0.2)))
    node.run(20)
    node.cpu += 4.0
    node.run(20)
    assert node.detail == Detail.WHOLE and node.budget.pause < 4 * PAUSE_SECONDS


@pytest.mark.parametrize("openings", [5, 10, 15, 20])
def test_a_load_just_below_the_budget_is_explained_whole(openings: int) -> None:
    """Also while a reading is made once a second, and the window is a little longer than it should be."""
    node = InventedNode(ReaderBudget(BudgetLimits(cpu=0.2)), openings=openings, cost=1e-3)
    node.run(120)
    before, sentences = node.explained, len(node.sentences)
    node.run(120)
    assert node.detail == Detail.WHOLE and len(node.sentences) == sentences and max(node.shares[-20:]) < 0.2
    assert abs(node.explained - before - openings * 120 * EVENTS_OF_PACKET) <= 2 * openings * EVENTS_OF_PACKET


def test_without_a_limit_nothing_changes() -> None:
    node = InventedNode(ReaderBudget(BudgetLimits()), openings=2000, failures=2000)
    node.run(30)
    assert not node.sentences and node.budget.most_events is None and node.budget.pause == PAUSE_SECONDS
    assert max(node.shares) > 1


def test_openings_are_left_out_in_a_flood_of_them_and_come_back_once_after_it() -> None:
    node = InventedNode(ReaderBudget(BudgetLimits(cpu=0.2)), openings=5000, failures=5)
    node.run(120)
    why = "a reading had too many events"
    assert node.sentences[0] == f"The budget of 20 % of a processor is used up ({why}): openings are no longer written."
    assert len(node.sentences) == 1, "no step back while the flood goes on, so the log has one line"
    assert node.detail == Detail.FAILURES and median(node.shares) <= 0.2
    node.openings = 50
    node.run(60)
    assert node.sentences[1:] == ["The budget of 20 % of a processor is kept again: openings are written again."]
    assert node.detail == Detail.WHOLE and node.budget.pause == PAUSE_SECONDS


def test_a_flood_of_failures_is_a_sample() -> None:
    """Explaining less of each reading keeps the budget: some failures are always shown."""
    node = InventedNode(ReaderBudget(BudgetLimits(cpu=0.2)), failures=20_000)
    node.run(120)
    assert node.detail == Detail.FAILURES and len(node.sentences) == 1
    assert max(node.shares[2:]) <= 0.2 * 1.25 and node.explained >= 120 * SAMPLE_PER_SECOND


def test_nothing_is_written_when_draining_alone_takes_too_much() -> None:
    node = InventedNode(ReaderBudget(BudgetLimits(cpu=0.02)), failures=50_000)
    node.run(120)
    assert node.detail == Detail.NOTHING and median(node.shares) <= 0.02 * 1.25
    assert [s.rpartition(": ")[2] for s in node.sentences[:2]] == [
        "openings are no longer written.", "no packet is written any more.",
    ]  # fmt: skip
    node.failures = 0
    node.run(120)
    assert node.detail == Detail.WHOLE


def test_a_reader_that_costs_too_much_when_idle_reads_less_often() -> None:
    node = InventedNode(ReaderBudget(BudgetLimits(cpu=0.02)), idle=0.003)
    node.run(60)
    assert PAUSE_SECONDS < node.budget.pause <= MOST_PAUSE_SECONDS and median(node.shares) <= 0.021
    assert node.detail == Detail.WHOLE, "what was left out at the beginning is written again"


def test_steps_back_that_are_taken_back_become_rare() -> None:
    """An estimate that is too low: the packets cost more than it says. The log gets few lines."""
    node = InventedNode(ReaderBudget(BudgetLimits(cpu=0.2)), openings=300, idle=0.0005, cost=100e-6)
    for _ in range(200):
        node.openings = 0 if node.details and node.detail else 5000
        node.run(10)
    assert len(node.sentences) < 2 * 2000 / 60 and node.budget._hold <= MOST_HOLD_SECONDS


def test_memory_above_its_limit() -> None:
    node = InventedNode(ReaderBudget(BudgetLimits(memory=150_000_000)), openings=50, memory=140_000_000)
    node.run(30)
    assert not node.sentences and node.budget.most_events is None
    node.memory = 160_000_000
    node.run(4)
    assert node.sentences == ["The budget of 150 MB is used up (160 MB): openings are no longer written."]
    assert node.budget.most_events is not None and node.budget.most_events <= SAMPLE_EVENTS
    node.run(7)
    assert node.detail == Detail.NOTHING
    node.memory = 145_000_000
    node.run(60)
    assert node.detail == Detail.NOTHING, "not so near to the limit"
    node.memory = 120_000_000
    node.run(60)
    assert node.detail == Detail.WHOLE and node.budget.most_events is None and len(node.sentences) == 4


def test_both_limits_are_named() -> None:
    assert str(ReaderBudget(BudgetLimits(0.02, 150_000_000))) == "2 % of a processor and 150 MB"


@pytest.mark.parametrize("pause", [0.0001, 0.05])
def test_the_window_is_bounded(pause: float) -> None:
    budget = ReaderBudget(BudgetLimits(cpu=0.2))
    for number in range(5 * WINDOW_READINGS):
        budget.measure(Reading(number * pause, 0.0))
    assert len(budget._window) <= WINDOW_READINGS
