# SPDX-License-Identifier: Apache-2.0
"""Questions to the machine: a journal of their answers, and the error for a question that a recorded run did not ask."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Protocol, TypeVar

T = TypeVar("T")
U = TypeVar("U")
Question = tuple[Hashable, ...]
"""Kind of the question and its arguments: ("process", 48213)."""


class NotAsked(LookupError):
    """The capture has no answer, because its run did not ask the question. No statement may rest on it."""


class Journal(Protocol):
    """Answers a question to the machine.

    Args:
        question: The question.
        ask: Gets the answer from the machine.
        default: The answer that earlier versions did not record; they recorded only answers that differ from it.

    Raises:
        NotAsked: A capture does not have the answer.
    """

    def __call__(self, question: Question, ask: Callable[[], T], default: T) -> T: ...


def live(question: Question, ask: Callable[[], T], default: T) -> T:
    """The journal of a live run without recording: asks the machine each time."""
    return ask()


def answered(ask: Callable[[], T], otherwise: U) -> T | U:
    """The answer, or `otherwise` if a capture does not have it; `otherwise` must not be a statement about the machine."""
    try:
        return ask()
    except NotAsked:
        return otherwise
