# SPDX-License-Identifier: Apache-2.0
"""Metrics that are read from procfs, from the ring buffer's reader and from this process."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.metric_books import book, histogram, values
from tracer.node.node import HostReader
from tracer.util.ring_level import ring_level
from tracer.util.worker import user_warnings


class FakeHost(HostReader):
    """Answers with these sysctls."""

    def __init__(self, **settings: str) -> None:
        self.settings = settings

    def setting(self, name: str, pid: int = 0, kept_seconds: float = 0) -> str:
        return self.settings.get(Path(name).name, "")


def test_conntrack() -> None:
    host = FakeHost(nf_conntrack_count="812", nf_conntrack_max="262144")
    metrics = book(host=host)
    assert values(metrics, "conntrack_entries") == {(): 812} and values(metrics, "conntrack_limit_entries") == {(): 262144}
    host.settings["nf_conntrack_count"] = "900"
    assert values(metrics, "conntrack_entries") == {(): 900}, "it is read each time"


def test_without_conntrack_there_is_no_sample() -> None:
    metrics = book(host=FakeHost())
    assert values(metrics, "conntrack_entries") == values(metrics, "conntrack_limit_entries") == {}


def test_the_ring_is_measured_once_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    metrics = book()
    for share in (0.0, 0.6, 0.95):
        monkeypatch.setattr(ring_level, "share", share)
        metrics.end_batch(1)
    assert histogram(metrics, "ring_fill_ratio")[()].counts == [1, 1, 1, 1, 2, 2, 3]
    assert values(metrics, "batches") == {(): 3}


def test_figures_of_the_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    is_ready = False
    metrics = book(version="0.1.0", kernel="6.12", node="", is_ready=lambda: is_ready)
    assert values(metrics, "build_info") == {("0.1.0", "6.12", "none"): 1} and values(metrics, "ready") == {(): 0}
    is_ready = True
    monkeypatch.setattr(user_warnings, "failures", 3)
    assert values(metrics, "ready") == {(): 1} and values(metrics, "thread_errors") == {(): 3}
