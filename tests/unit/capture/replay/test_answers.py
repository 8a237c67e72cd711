# SPDX-License-Identifier: Apache-2.0
"""The answers of a capture have a limit. An evicted answer counts as not asked: nothing is concluded from its absence."""

from __future__ import annotations

import pytest

from tracer.capture.replay import answers as answers_module
from tracer.capture.replay.answers import ReplayedAnswers
from tracer.util.questions import Answer, Known, NotAsked


def ask(answers: ReplayedAnswers, number: int) -> Answer[tuple[int, str]]:
    return answers.journal(("process", number), lambda: (0, ""), (0, ""))


@pytest.mark.parametrize("omits_defaults", [False, True])
def test_an_evicted_answer_counts_as_not_asked(omits_defaults: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Older captures left out default answers, so a missing answer meant "no process": not after an eviction."""
    monkeypatch.setattr(answers_module, "ANSWERS_KEPT", 3)
    answers = ReplayedAnswers(omits_defaults)
    assert not omits_defaults or ask(answers, 0) == Known((0, ""))
    for n in range(10):
        answers.feed(("process", n), 1, (n, "server"))
        assert len(answers._last) <= 3
    assert ask(answers, 9) == Known((9, "server")) and answers._last.evicted == 7
    assert ask(answers, 0) == NotAsked(("process", 0))
    assert answers.unanswered == [], "it does not prove that the run ended before the question"


def test_the_least_recently_used_answer_is_evicted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A recording writes an answer again when it evicts it; it keeps those that are asked for."""
    monkeypatch.setattr(answers_module, "ANSWERS_KEPT", 3)
    answers = ReplayedAnswers()
    for n in range(10):
        answers.feed(("process", n), 1, (n, "server"))
        assert ask(answers, 0) == Known((0, "server"))


def test_answers_of_one_batch_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A recording has few of them; a made-up capture can have any number. The earlier answer is not used in their place."""
    monkeypatch.setattr(answers_module, "MAX_PENDING", 3)
    answers = ReplayedAnswers()
    answers.feed(("process", 1), 1, (1, "first"))
    for count in range(2, 100):
        answers.feed(("process", 1), count, (count, "later"))
    assert answers._pending_count == 3
    assert ask(answers, 1) == NotAsked(("process", 1))
    assert ask(answers, 1) == Known((2, "later"))
    answers.end_batch()
    assert answers._pending_count == 0 and not answers._pending


def test_the_version_changes_before_an_answer_does() -> None:
    answers = ReplayedAnswers()
    answers.feed(("process", 1), 1, (1, "server"))
    version = answers.version()
    assert ask(answers, 1) == Known((1, "server")) and answers.version() == version
    answers.feed(("process", 1), 2, (2, "other"))
    versions = [version, answers.version(), answers.version()]
    assert len(set(versions)) == 3, "any further request may get the new answer"
    answers.end_batch()
    versions.append(answers.version())
    assert ask(answers, 1) == Known((2, "other")) and len(set(versions)) == 4
    assert answers.version() == versions[-1]
