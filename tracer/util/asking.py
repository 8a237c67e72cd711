# SPDX-License-Identifier: Apache-2.0
"""Questions to the machine: how an answer is asked for, and what stands for a question that was not asked."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    pass

T = TypeVar("T")
U = TypeVar("U")
Question = tuple[Hashable, ...]
"""What is asked of, and what about: ("process", 48213)."""


class NotAsked(LookupError):
    """A capture does not have the answer: its run did not ask. It is no answer, and nothing is shown by it."""


class Journal(Protocol):
    """Gives the answer to a question. ask: has it from the machine. Raises NotAsked where there is none.

    default: the answer that was not written down by programs of before, which kept only answers that differ from it.
    """

    def __call__(self, question: Question, ask: Callable[[], T], default: T) -> T: ...


def live(question: Question, ask: Callable[[], T], default: T) -> T:
    """The machine is asked each time."""
    return ask()


def answered(ask: Callable[[], T], otherwise: U) -> T | U:
    """The answer; `otherwise` where a capture does not have it, which must not be a claim."""
    try:
        return ask()
    except NotAsked:
        return otherwise
