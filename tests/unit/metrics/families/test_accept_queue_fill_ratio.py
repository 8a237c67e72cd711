# SPDX-License-Identifier: Apache-2.0
"""The accept queue of a listener, as SYNs and last ACKs met it."""

from __future__ import annotations

import pytest

from tests.support.metric_books import book, histogram
from tests.support.syns import at_listener, last_ack, syn, synack, verdicts
from tracer.metrics.families.accept_queue_fill_ratio import BOUNDS


@pytest.mark.parametrize(
    ("queue", "limit", "bound"),
    [(0, 128, 0.0), (12, 128, 0.1), (64, 128, 0.5), (128, 128, 1.0), (129, 128, None), (0, 0, 0.0), (1, 0, None)],
)
def test_a_queue_that_is_longer_than_its_limit_is_above_the_last_bound(queue: int, limit: int, bound: float | None) -> None:
    metrics = book()
    (verdict,) = verdicts(syn(*at_listener(queue <= limit, accept_queue=queue, accept_limit=limit)))
    metrics.syn(verdict)
    counts = histogram(metrics, "accept_queue_fill_ratio")[("pod-a", "nginx")].counts
    first = BOUNDS.index(bound) if bound is not None else len(BOUNDS)
    assert counts == [0] * first + [1] * (len(BOUNDS) + 1 - first)


def test_syn_and_last_ack_are_both_counted() -> None:
    metrics = book()
    for verdict in verdicts(syn(*at_listener(True)), synack(), last_ack()):
        metrics.syn(verdict)
    found = histogram(metrics, "accept_queue_fill_ratio")
    assert sum(each.counts[-1] for each in found.values()) == 2
