# SPDX-License-Identifier: Apache-2.0
"""Ready while the probes are attached; alive while batches come and no thread has died."""

from __future__ import annotations

import pytest

from tests.support.waiting import PATIENCE
from tracer.metrics.health import STALLED_SECONDS, AgentHealth
from tracer.util import worker
from tracer.util.worker import ThreadDeaths, Worker


def test_batches_have_to_come_during_the_run_only() -> None:
    now = 1000.0
    health = AgentHealth(ThreadDeaths(), lambda: now)
    now += 10 * STALLED_SECONDS
    assert not health.is_ready and not health.problem, "a start may take long"
    health.begin()
    assert health.is_ready and not health.problem
    now += STALLED_SECONDS + 1
    assert health.problem == f"No batch of events was read for {STALLED_SECONDS + 1:.0f} s."
    health.end_batch()
    assert not health.problem
    health.end()
    now += 10 * STALLED_SECONDS
    assert not health.is_ready and not health.problem


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_ends_by_an_error_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    deaths = ThreadDeaths()
    monkeypatch.setattr(worker, "thread_deaths", deaths)

    def unit() -> bool:
        raise SystemExit

    Worker("rules", unit).start().join(PATIENCE)
    assert AgentHealth(deaths).problem == "These threads have ended by an error: rules."


def test_a_thread_that_has_done_its_work_is_not_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    deaths = ThreadDeaths()
    monkeypatch.setattr(worker, "thread_deaths", deaths)
    calls = []

    def unit() -> bool:
        calls.append(1)
        if len(calls) < 2:
            raise ValueError
        return False

    Worker("rules", unit).start().join(PATIENCE)
    assert len(calls) == 2 and not deaths.names()
