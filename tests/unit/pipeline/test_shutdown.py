# SPDX-License-Identifier: Apache-2.0
"""Stop requests: the first one, and a second one."""

from __future__ import annotations

import os
import signal
import time

import pytest

from tracer.pipeline.shutdown import END_SECONDS, StopRequest, StopSignals


def test_a_stop_request_leaves_some_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("tracer.pipeline.shutdown.time.monotonic", lambda: now[0])
    stop = StopRequest()
    assert not stop.is_requested and not stop.is_overdue
    stop.request()
    now[0] += END_SECONDS
    stop.request()
    assert stop.is_requested and not stop.is_overdue
    now[0] += 0.1
    assert stop.is_overdue, "a second request gives no more time"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_request_a_stop_and_are_restored(number: signal.Signals) -> None:
    seen: list[int] = []
    before = signal.signal(number, lambda n, frame: seen.append(n))
    handlers = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    try:
        with StopSignals() as stop:
            assert not stop.is_requested
            os.kill(os.getpid(), number)
            time.sleep(0)
            assert (stop.is_requested, stop.is_overdue, seen) == (True, False, [])
            os.kill(os.getpid(), number)
            time.sleep(0)
            assert (stop.is_overdue, seen) == (True, []), "the second signal stops at once"
        assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == handlers
        os.kill(os.getpid(), number)
        time.sleep(0)
        assert seen == [number]
    finally:
        signal.signal(number, before)


def test_a_run_under_nohup_goes_on() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopSignals() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not stop.is_requested and signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("ends_soon", [False, True])
def test_a_run_that_takes_long_to_end_says_so(ends_soon: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the middle of any work; the handler of the alarm is restored with the others."""
    monkeypatch.setattr("tracer.pipeline.shutdown.ANSWER_SECONDS", 0.05)
    before, answers = signal.getsignal(signal.SIGALRM), list[bool]()
    with StopSignals(on_delay=lambda: answers.append(stop.is_requested)) as stop:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0)
        if not ends_soon:
            until = time.monotonic() + 20
            while not answers and time.monotonic() < until:
                sum(range(1000))
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0 and signal.getsignal(signal.SIGALRM) == before
    assert answers == [] if ends_soon else answers == [True]


def test_a_stream_that_is_being_written_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def reentrant() -> None:
        raise RuntimeError("reentrant call inside <_io.BufferedWriter>")

    with StopSignals(on_delay=reentrant) as stop:
        signal.raise_signal(signal.SIGALRM)
        assert not stop.is_requested
