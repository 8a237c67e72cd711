# SPDX-License-Identifier: Apache-2.0
"""Questions of a live run: asked once for the packets of a chunk, and again for the next one."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest

from tests.support.builders import POD, SECOND
from tests.support.shared_paths import CountingNames, CountingOwners, delivered, rows_of
from tracer.events.record import DTYPE, EventArray
from tracer.kernel.session import Session
from tracer.pipeline.answer_period import AnswerPeriod
from tracer.pipeline.assembly import COMPARED_VARIABLE, AssemblyParts, KernelNames, packet_assembler
from tracer.pipeline.live_source import LiveSource
from tracer.rules.rule_resolver import RuleResolver
from tracer.util.worker import user_warnings

INODE = 48213


def parts_of(names: CountingNames, owners: CountingOwners, functions: list[int] | None = None) -> AssemblyParts:
    def function(address: int) -> str:
        (functions if functions is not None else []).append(address)
        return "tcp_v4_rcv"

    nothing = cast(Any, None)
    return AssemblyParts(names, owners, nothing, nothing, nothing, RuleResolver(), KernelNames(function, {}), 0, set())


def batch(first: int, count: int) -> EventArray:
    return rows_of(*(delivered(number, inode=INODE) for number in range(first, first + count)))


def test_each_question_is_asked_once_in_a_period() -> None:
    names, owners, functions = CountingNames(), CountingOwners(), list[int]()
    period = AnswerPeriod()
    parts = period.hold(parts_of(names, owners, functions))
    for _ in range(2):
        for _ in range(3):
            assert (parts.namespaces.name(POD), parts.processes.owner(INODE)[0]) == (names.name(POD), owners.owner(INODE)[0])
            assert parts.names.function(0x10) == "tcp_v4_rcv"
        period.end()
    assert (names.requests[POD], owners.requests[INODE], functions) == (2 + 6, 2 + 6, [0x10, 0x10])
    assert period.number == 2


def test_packets_of_one_connection_share_the_answers_of_their_chunk() -> None:
    names, owners, period = CountingNames(), CountingOwners(), AnswerPeriod()
    assembler = packet_assembler(period.hold(parts_of(names, owners)), version=lambda: period.number)
    for round_number in range(1, 4):
        period.end()
        assembler.feed(batch(100 * round_number, 20))
        closed = assembler.closed(round_number * SECOND + 100 * SECOND)
        assert len(closed) == 20 and {packet.netns for packet in closed} == {names.name(POD)}
        assert owners.requests[INODE] == round_number
    assert assembler.shared == 3 * 20 - 1


def test_a_new_answer_counts_from_the_next_period_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """The packets that are compared, here each one, get the answers of their period in both ways."""
    monkeypatch.setenv(COMPARED_VARIABLE, "1")
    names, period, found = CountingNames(after=2), AnswerPeriod(), []
    assembler = packet_assembler(period.hold(parts_of(names, CountingOwners())), version=lambda: period.number)
    user_warnings.read()
    for round_number in range(1, 5):
        period.end()
        assembler.feed(batch(100 * round_number, 5))
        found.append({packet.netns for packet in assembler.closed(200 * SECOND)})
    assert all(len(each) == 1 for each in found) and found[0] != found[3]
    assert user_warnings.read() == [] and assembler.is_sharing


def test_a_period_ends_before_a_batch_and_after_a_chunk() -> None:
    class Probes:
        def events(self) -> EventArray:
            return np.zeros(0, DTYPE)

        def losses(self) -> list[object]:
            return []

        def poll_losses(self) -> None: ...

    period = AnswerPeriod()
    source = LiveSource(cast(Session, Probes()), period=period)
    source.read()
    assert period.number == 1
    source.poll_losses()
    assert period.number == 2
