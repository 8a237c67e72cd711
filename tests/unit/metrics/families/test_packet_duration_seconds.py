# SPDX-License-Identifier: Apache-2.0
"""Times of packets: each packet once, also a SYN that failed; in seconds."""

from __future__ import annotations

import pytest

from tests.support import sample_packets as samples
from tests.support.metric_books import book, histogram, values
from tests.support.syns import at_listener, last_ack, syn, synack, verdicts
from tracer.metrics.families.packet_duration_seconds import BOUNDS


def test_a_packet_that_failed() -> None:
    metrics = book()
    metrics.packet(samples.rejected())
    found = histogram(metrics, "packet_duration_seconds")[("rejected",)]
    assert found.total == pytest.approx(9e-6) and found.counts == [1] * (len(BOUNDS) + 1)


def test_a_syn_is_measured_once() -> None:
    metrics = book()
    (good,) = verdicts(syn(*at_listener(True)), synack(), last_ack())
    (bad,) = verdicts(failed := syn(*at_listener(False, accept_queue=129)))
    metrics.packet(failed)
    metrics.syn(bad)
    metrics.syn(good)
    assert values(metrics, "packet_duration_seconds") == {("dropped",): 1, ("delivered",): 1}
