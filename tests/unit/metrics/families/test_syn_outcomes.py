# SPDX-License-Identifier: Apache-2.0
"""The labels of a SYN: its Service, and what became of it."""

from __future__ import annotations

from dataclasses import replace

from tests.support.metric_books import book, values
from tests.support.syns import at_listener, last_ack, syn, synack, verdicts
from tracer.model.kube import Owner
from tracer.model.packet import Packet

SERVICE = Owner("Service", "shop", "cart", "http")


def outcomes(*packets: Packet, **fields: Owner) -> dict[tuple[str, ...], float]:
    metrics = book()
    for verdict in verdicts(*(replace(packet, **fields) for packet in packets)):  # type: ignore[arg-type]
        metrics.syn(verdict)
    return values(metrics, "syn_outcomes")


def test_an_answered_syn_of_a_service() -> None:
    found = outcomes(syn(*at_listener(True)), synack(), last_ack(), dst_owner=SERVICE)
    assert found == {("shop", "cart", "answered", "accepted"): 1}


def test_a_full_accept_queue() -> None:
    found = outcomes(syn(*at_listener(False, accept_queue=129)), dst_owner=SERVICE)
    assert found == {("shop", "cart", "failed", "accept queue full"): 1}


def test_a_syn_of_no_service_with_an_unknown_end() -> None:
    assert outcomes(replace(syn(), complete=False)) == {("none", "none", "unknown", "not known"): 1}


def test_a_verdict_without_its_packets() -> None:
    metrics = book()
    (verdict,) = verdicts(syn(*at_listener(True)), synack(), last_ack())
    metrics.syn(replace(verdict, attempt=None))
    assert values(metrics, "syn_outcomes") == {("unknown", "unknown", "answered", "accepted"): 1}
    assert values(metrics, "packet_duration_seconds") == values(metrics, "accept_queue_fill_ratio") == {}
