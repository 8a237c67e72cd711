# SPDX-License-Identifier: Apache-2.0
"""Recorded answers and readings of rules, which replace the machine in a replay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from tracer.rules.iptables.table_reader import TableRequest, TableSnapshot
from tracer.rules.nftables.watcher import RulesetUpdate
from tracer.util.evictions import evictions
from tracer.util.lru_dict import LruDict
from tracer.util.questions import Answer, Known, NotAsked, Question

T = TypeVar("T")
ANSWERS_KEPT = 1 << 18
"""Maximum number of questions with a known answer: twice as many as a recording keeps. An evicted one counts as not asked."""
MAX_PENDING = 1 << 18
"""Maximum number of answers that are valid only from a later request of the same batch."""
MAX_UNANSWERED = 64
"""Maximum number of kept questions without an answer. One is enough to show that the run had ended."""


class ReplayedTableReader:
    """Gives the readings of legacy tables that were recorded in the current batch (`pending`)."""

    def __init__(self) -> None:
        self.pending: list[TableSnapshot] = []

    def request(self, request: TableRequest) -> None: ...

    def read(self) -> list[TableSnapshot]:
        found, self.pending = self.pending, []
        return found

    def close(self) -> None: ...


class ReplayedRulesetWatcher:
    """Gives the readings of nftables rules that were recorded in the current batch (`pending`)."""

    def __init__(self) -> None:
        self.pending: list[RulesetUpdate] = []

    def changes(self) -> list[RulesetUpdate]:
        found, self.pending = self.pending, []
        return found

    def is_coming(self, inode: int, generation: int) -> bool:
        return True


class ReplayedAnswers:
    """The recorded answers. `journal` is the Journal of a replay.

    Args:
        omits_defaults: the capture does not have default answers. Older programs recorded explained runs in this way.

    Attributes:
        unanswered: questions about the process of a socket that had no answer. The caller empties the list.
    """

    def __init__(self, omits_defaults: bool = False) -> None:
        self._omits_defaults, self.unanswered = omits_defaults, list[Question]()
        self._last: LruDict[Question, Any] = LruDict(ANSWERS_KEPT, "answers of the capture")
        self._pending: dict[Question, list[tuple[int, Any]]] = {}
        self._counts: dict[Question, int] = {}
        self._pending_count, self._has_dropped, self._changes = 0, False, 0

    def feed(self, question: Question, count: int, answer: Any) -> None:
        """Takes a recorded answer.

        Args:
            question: the question.
            count: number of the request in the batch that begins; 1 for an answer of an earlier batch.
            answer: the answer from this request on.
        """
        self._changes += 1
        if count > 1 and self._pending_count < MAX_PENDING:
            self._pending.setdefault(question, []).append((count, answer))
            self._pending_count += 1
        elif count > 1:
            self._last.pop(question, None)
            self._has_dropped = True
            evictions.add("answers of one batch of the capture")
        else:
            self._last[question] = answer

    @property
    def is_uniform(self) -> bool:
        """Whether each question has one answer throughout the batch."""
        return not self._pending_count

    def version(self) -> int:
        """Changes before each answer that may differ from an earlier one."""
        self._changes += not self.is_uniform
        return self._changes

    def require_answers(self) -> None:
        """From now on a question without an answer was not asked."""
        self._omits_defaults = False
        self._changes += 1

    def end_batch(self) -> None:
        """Ends a batch. Its answers stay valid, also those that this replay did not request."""
        self._changes += not self.is_uniform
        for question, pending in self._pending.items():
            if pending:
                self._last[question] = pending[-1][1]
        self._pending.clear()
        self._pending_count = 0
        self._counts.clear()

    def journal(self, question: Question, ask: Callable[[], T], default: T, requests: int = 1) -> Answer[T]:
        """The recorded answer."""
        pending = self._pending.get(question)
        if pending:
            self._counts[question] = count = self._counts.get(question, 0) + requests
            while pending and pending[0][0] <= count:
                self._last[question] = pending.pop(0)[1]
        is_partial = self._has_dropped or self._last.evicted > 0
        if question not in self._last and (is_partial or not self._omits_defaults):
            if question[0] == "process" and len(self.unanswered) < MAX_UNANSWERED and not is_partial:
                self.unanswered.append(question)
            return NotAsked(question)
        found: T = self._last.get(question, default)
        return Known(found)
