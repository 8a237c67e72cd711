# SPDX-License-Identifier: Apache-2.0
"""What answers in a replay in place of the machine, its reader of rules and its watch of nftables: what was said then."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from tracer.rules.iptables.table_reader import TableReader, TableRequest, TableSnapshot
from tracer.rules.nftables.watcher import RulesetUpdate
from tracer.util.asking import NotAsked, Question

T = TypeVar("T")
MOST_UNASKED = 64
"""Questions without an answer that are kept: one is enough to show that the run had ended."""


class ReplayedTableReader(TableReader):
    """Gives the readings that were taken in this turn."""

    def __init__(self) -> None:
        self.coming: list[TableSnapshot] = []

    def request(self, request: TableRequest) -> None: ...

    def read(self) -> list[TableSnapshot]:
        found, self.coming = self.coming, []
        return found

    def close(self) -> None: ...


class ReplayedRulesetWatcher:
    """Gives what was learned of nftables' rules in this turn."""

    def __init__(self) -> None:
        self.learned: list[RulesetUpdate] = []

    def changes(self) -> list[RulesetUpdate]:
        found, self.learned = self.learned, []
        return found

    def is_coming(self, inode: int, generation: int) -> bool:
        return True


class ReplayedAnswers:
    """The recorded answers; its `asking` is the Journal of a replay.

    silent: the capture does not have answers that are the default one, as explained runs were recorded before.
    unasked: sockets whose process was asked for here and had no answer, since the list was last taken.
    """

    def __init__(self, silent: bool = False) -> None:
        self._silent, self.unasked = silent, list[Question]()
        self._last: dict[Question, Any] = {}
        self._coming: dict[Question, list[tuple[int, Any]]] = {}
        self._asked: dict[Question, int] = {}

    def feed(self, question: Question, count: int, answer: Any) -> None:
        """An answer of the turn that begins, or of one before it (count 1), at its count-th asking."""
        if count > 1:
            self._coming.setdefault(question, []).append((count, answer))
        else:
            self._last[question] = answer

    def ask_strictly(self) -> None:
        """From now on a question without an answer was not asked."""
        self._silent = False

    def settle(self) -> None:
        """A turn is over. What was answered in it, and not asked for in this replay, holds all the same."""
        for question, coming in self._coming.items():
            if coming:
                self._last[question] = coming[-1][1]
        self._coming.clear()
        self._asked.clear()

    def asking(self, question: Question, ask: Callable[[], T], default: T) -> T:
        """What was answered then. Raises NotAsked where nothing was."""
        coming = self._coming.get(question)
        if coming:
            self._asked[question] = count = self._asked.get(question, 0) + 1
            while coming and coming[0][0] <= count:
                self._last[question] = coming.pop(0)[1]
        if question not in self._last and not self._silent:
            if question[0] == "process" and len(self.unasked) < MOST_UNASKED:
                self.unasked.append(question)
            raise NotAsked(question)
        found: T = self._last.get(question, default)
        return found
