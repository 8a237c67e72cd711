# SPDX-License-Identifier: Apache-2.0
"""Questions to the machine and their answers: a journal answers live, records the answers, or answers from a capture."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

T = TypeVar("T")
Value = TypeVar("Value", covariant=True)
Question = tuple[Hashable, ...]
"""Kind of the question and its arguments: ("process", 48213)."""


@dataclass(frozen=True, slots=True)
class Known(Generic[Value]):
    """The answer of the machine."""

    value: Value


@dataclass(frozen=True, slots=True)
class NotAsked:
    """The capture has no answer, because its run did not ask the question. No statement may rest on it."""

    question: Question


Answer = Known[T] | NotAsked


def value_of(answer: Answer[T]) -> T | None:
    """The value of an answer; None if the question was not asked. For questions with answers that are never None."""
    return answer.value if isinstance(answer, Known) else None


class Journal(Protocol):
    """Answers a question to the machine.

    Args:
        question: The question.
        ask: Gets the answer from the machine.
        default: The answer that earlier versions did not record; they recorded only answers that differ from it.
        requests: How often the answer is used. A capture places a new answer by the number of requests in its batch.
    """

    def __call__(self, question: Question, ask: Callable[[], T], default: T, requests: int = 1) -> Answer[T]: ...


def live(question: Question, ask: Callable[[], T], default: T, requests: int = 1) -> Answer[T]:
    """The journal of a live run without recording: asks the machine each time."""
    return Known(ask())
