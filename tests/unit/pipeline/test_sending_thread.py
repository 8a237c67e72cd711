# SPDX-License-Identifier: Apache-2.0
"""The thread of an output that sends to a server."""

from __future__ import annotations

import threading

from tests.support.waiting import until
from tracer.pipeline.sending_thread import SendingThread


def test_it_steps_until_nothing_is_left() -> None:
    steps: list[bool] = []

    def step(is_over: bool) -> bool:
        steps.append(is_over)
        return steps.count(True) == 3

    thread = SendingThread("sender", step, 0.01)
    thread.start()
    until(lambda: steps)
    thread.end(60.0)
    assert steps.count(True) == 3 and steps[0] is False and "sender" not in {each.name for each in threading.enumerate()}


def test_it_is_woken() -> None:
    stepped = threading.Event()

    def step(is_over: bool) -> bool:
        stepped.set()
        return True

    thread = SendingThread("sender", step, 600.0)
    thread.start()
    thread.wake()
    assert stepped.wait(60)
    thread.end(60.0)


def test_a_request_that_hangs_is_interrupted() -> None:
    hangs, interrupted = threading.Event(), threading.Event()

    def step(is_over: bool) -> bool:
        hangs.set()
        interrupted.wait(60)
        return False

    thread = SendingThread("sender", step, 60.0)
    thread.start()
    thread.wake()
    assert hangs.wait(60)
    thread.end(0.1, interrupted.set)
    until(lambda: "sender" not in {each.name for each in threading.enumerate()})


def test_an_end_without_a_start() -> None:
    ended: list[str] = []
    SendingThread("sender", lambda _: True, 1.0).end(0.1, lambda: ended.append("interrupted"))
    assert ended == ["interrupted"]
