# SPDX-License-Identifier: Apache-2.0
"""Finds where a run stopped explaining its packets, from the missing answers. For captures without this information."""

from __future__ import annotations

from tracer.capture.format import record_checks
from tracer.capture.format.codec import MalformedRecord, from_json
from tracer.capture.format.schema import Record
from tracer.capture.replay.answers import ReplayedAnswers
from tracer.capture.replay.capture_reader import CaptureReader
from tracer.util.questions import Question

DERIVED = (
    "This capture does not say how many of its packets the run had explained. The marked packets need answers that it does not"
    " have: the run ended before it explained them."
)


class UnexplainedTail:
    """The unexplained packets of one replay. Explaining a packet always requests the process of each socket on its path."""

    def __init__(self, capture: CaptureReader, answers: ReplayedAnswers) -> None:
        self._capture, self._answers = capture, answers
        self._processes: set[Question] | None = None

    def proves_end(self, first_batch: int) -> bool:
        """Whether the packets explained since the previous call need the process of a socket that the run never requested.

        This is a proof only for a complete capture, not for a ring, a later file of a series, or a damaged file. A later answer
        in the capture disproves it: without rules, packets are explained earlier.

        Args:
            first_batch: number of the capture's first batch.
        """
        questions, self._answers.unanswered = self._answers.unanswered, []
        if not questions or self._capture.missed or not self._is_whole(first_batch):
            return False
        if self._processes is None:
            rows = (body for _, kind, _, body in self._capture.records() if kind == Record.ANSWER)
            self._processes = {question for question, _, _ in map(_answer, rows) if question[0] == "process"}
        return not self._processes.issuperset(questions)

    def _is_whole(self, first_batch: int) -> bool:
        """Whether the capture begins at the beginning of its run, and the run explained packets."""
        ring, repeated, options = (self._capture.meta.get(name) for name in ("ring", "repeated", "options"))
        try:
            decoded = from_json(options)
        except MalformedRecord:
            return False
        has_explained = isinstance(decoded, dict) and decoded.get("record_only") is False
        return has_explained and not ring and not repeated and first_batch == 1


def _answer(body: object) -> tuple[Question, int, object]:
    """A decoded answer; the question ("unreadable",) where it cannot be decoded."""
    try:
        return record_checks.answer(body)
    except (MalformedRecord, TypeError, ValueError, LookupError, AttributeError):
        return ("unreadable",), 0, None
