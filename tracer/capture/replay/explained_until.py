# SPDX-License-Identifier: Apache-2.0
"""Where a run stopped explaining its packets, from what its capture lacks; for captures that do not say it."""

from __future__ import annotations

from tracer.capture.format import record_checks
from tracer.capture.format.codec import MalformedRecord, rich
from tracer.capture.format.schema import Record
from tracer.capture.replay.answers import ReplayedAnswers
from tracer.capture.replay.capture_reader import CaptureReader
from tracer.util.asking import Question

DERIVED = (
    "This capture does not say how far its run had explained its packets. Those that are marked need answers that it does not"
    " have: the run ended before it explained them."
)


class UnexplainedTail:
    """Of one replay. Explaining a packet always asks for the process of each socket that it met."""

    def __init__(self, capture: CaptureReader, answers: ReplayedAnswers) -> None:
        self._capture, self._answers = capture, answers
        self._processes: set[Question] | None = None

    def proves_end(self, first_turn: int) -> bool:
        """Whether the packets explained since the last call need the process of a socket that the run never asked for.

        Only where nothing of the capture is missing: of a ring, a later file of a series, or a damaged one it proves nothing.
        An answer that comes later in the capture proves nothing either: without rules packets are explained earlier.
        """
        asked, self._answers.unasked = self._answers.unasked, []
        if not asked or self._capture.missed or not self._is_whole(first_turn):
            return False
        if self._processes is None:
            rows = (body for _, kind, _, body in self._capture.records() if kind == Record.ANSWER)
            self._processes = {question for question, _, _ in map(_answer, rows) if question[0] == "process"}
        return not self._processes.issuperset(asked)

    def _is_whole(self, first_turn: int) -> bool:
        """Whether the capture begins with its run, and its run explained packets."""
        ring, repeated, options = (self._capture.meta.get(name) for name in ("ring", "repeated", "options"))
        try:
            told = rich(options)
        except MalformedRecord:
            return False
        explained = isinstance(told, dict) and told.get("record_only") is False
        return explained and not ring and not repeated and first_turn == 1


def _answer(body: object) -> tuple[Question, int, object]:
    """An answer, or none where it cannot be read."""
    try:
        return record_checks.answer(body)
    except (MalformedRecord, TypeError, ValueError, LookupError, AttributeError):
        return ("unreadable",), 0, None
