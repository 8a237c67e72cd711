# SPDX-License-Identifier: Apache-2.0
"""Programs at interfaces pass a capture: asked of the machine, written, checked, redacted, and answered in a replay."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from tracer.capture.format import record_checks
from tracer.capture.format.codec import MalformedRecord, to_json
from tracer.capture.format.schema import Record
from tracer.capture.journal import JournaledPrograms
from tracer.capture.redact.records import RecordRedactor
from tracer.capture.replay.answers import ReplayedAnswers
from tracer.model.bpf_program import AttachedProgram, AttachPoint, ProgramPeriod
from tracer.util.questions import Answer, Known

PROGRAM = AttachedProgram("tc", 42, "cil_x", "ab", "Cilium", "pin", "/sys/fs/bpf/web-1_x", "agent (pid 7)")
PERIODS = (ProgramPeriod(5, 9, ()), ProgramPeriod(10, 0, (PROGRAM,)))


class Machine:
    """The programs of an invented machine."""

    def periods(self, netns: int, ifindex: int, point: AttachPoint, time: int) -> Sequence[ProgramPeriod] | None:
        return PERIODS


def recorded() -> list[Any]:
    """The record of one answer, as it is written."""
    found: list[Any] = []

    def journal(question: Any, ask: Any, default: Any, requests: int = 1) -> Answer[Any]:
        answer = ask()
        found.append([to_json(question), 1, to_json(answer)])
        return Known(answer)

    assert JournaledPrograms(journal, Machine()).periods(4026, 2, AttachPoint.TC_INGRESS, 20) == PERIODS
    (body,) = found
    return list(json.loads(json.dumps(body)))


def replay(body: Any) -> JournaledPrograms:
    answers = ReplayedAnswers()
    answers.feed(*record_checks.answer(body))
    return JournaledPrograms(answers.journal)


def test_a_replay_has_the_same_programs() -> None:
    programs = replay(recorded())
    assert programs.periods(4026, 2, AttachPoint.TC_INGRESS, 20) == PERIODS
    assert programs.periods(4026, 2, AttachPoint.TC_EGRESS, 20) is None, "not asked"


def test_redaction_leaves_out_paths_and_processes() -> None:
    row = RecordRedactor(b"key").row((1, Record.ANSWER, "", recorded()))
    assert row and "web-1" not in json.dumps(row[3]) and "agent" not in json.dumps(row[3])
    (_, period) = replay(row[3]).periods(4026, 2, AttachPoint.TC_INGRESS, 20) or ()
    assert [each.name for each in period.programs] == ["cil_x"] and period.since == 10


@pytest.mark.parametrize(
    "answer",
    [
        "x", [1], {"tuple": [1]}, {"tuple": [{"ProgramPeriod": {"since": "x", "until": 0, "programs": {"tuple": []}}}]},
        {"tuple": [{"ProgramPeriod": {"since": 1, "until": 0, "programs": {"tuple": ["x"]}}}]},
        {"tuple": [{"ProgramPeriod": {"since": 1, "until": 0, "programs": {"tuple": [{"AttachedProgram": {"kind": 3}}]}}}]},
    ],
)  # fmt: skip
def test_an_answer_of_another_type_is_damage(answer: Any) -> None:
    body = recorded()
    with pytest.raises(MalformedRecord):
        record_checks.answer([body[0], 1, answer])
