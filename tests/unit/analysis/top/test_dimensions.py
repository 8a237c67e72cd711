# SPDX-License-Identifier: Apache-2.0
"""The row of each packet, by each dimension. What is not known is `unknown`, never another packet's owner."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support import sample_packets as samples
from tracer.analysis.top.dimensions import DIMENSIONS, NO_RULE, NOT_DROPPED, UNKNOWN, RowKey
from tracer.model.evidence import Evidence
from tracer.model.kube import Owner
from tracer.model.packet import Packet
from tracer.model.rule import Rule, RuleHit, RuleLocation, RuleTrace

SERVICE = Owner("Service", "default", "http-proxy", "http", "kube-proxy", "NodePort 30285", "pod default/web-a (node-1)")
POD = Owner("Pod", "default", "web-a", detail="on node-1")
RULE = Rule("ip", "nat", "KUBE-SEP-X", 2, "-j DNAT --to-destination 10.244.0.11:8080")


def row(dimension: str, packet: Packet) -> RowKey:
    return DIMENSIONS[dimension].of_packet(packet)


def decided(evidence: Evidence = Evidence.OBSERVED, undecided: str = "") -> Packet:
    """A SYN to a NodePort, translated by a rule of a Service."""
    hit = RuleHit((RuleLocation("PREROUTING", 1), RuleLocation("KUBE-SEP-X", 2)), RULE, "DNAT", evidence)
    return samples.with_hop(samples.node_port(), 2, owner=SERVICE, rule_trace=RuleTrace((hit,), undecided=undecided))


def test_service() -> None:
    assert row("service", decided()) == ("default/http-proxy:http", "")
    addressed = replace(samples.node_port(), dst_owner=SERVICE)
    assert row("service", addressed) == ("default/http-proxy:http", ""), "no rule names a Service, the address does"
    assert row("service", samples.node_port()) == (UNKNOWN, "")
    assert row("service", replace(samples.node_port(), dst_owner=POD)) == (UNKNOWN, ""), "a pod is no Service"


def test_rule() -> None:
    text = "Service default/http-proxy:http, NodePort 30285 -> pod default/web-a (node-1)"
    assert row("rule", decided()) == ("nat KUBE-SEP-X 2", text)
    assert row("rule", decided(Evidence.DERIVED)).text == "nat KUBE-SEP-X 2 (derived)"
    assert row("rule", decided(undecided="the rules have not been read")) == (UNKNOWN, UNKNOWN)
    assert row("rule", samples.node_port()) == (UNKNOWN, UNKNOWN), "rules were not asked for"
    assert row("rule", samples.ping()) == (NO_RULE, "")
    assert row("rule", replace(samples.ping(), complete=False)) == (UNKNOWN, UNKNOWN), "a part of it was lost"


def test_the_owner_of_a_rule_is_the_same_for_all_its_packets() -> None:
    """What set the mark differs from packet to packet, and is no part of the owner."""
    marked = replace(SERVICE, cause="mark 0x4000 set by KUBE-MARK-MASQ for default/http-proxy")
    assert row("rule", samples.with_hop(decided(), 2, owner=marked)) == row("rule", decided())


@pytest.mark.parametrize(
    ("packet", "reason"),
    [
        (samples.node_port(), NOT_DROPPED),
        (samples.rejected(), "REJECT in ip6 kube-proxy/filter-output"),
        (samples.full_queue(), "accept queue full"),
        (samples.ipvs()[2], "REJECT by IPVS"),
        (samples.no_socket(), UNKNOWN),
    ],
)
def test_reason(packet: Packet, reason: str) -> None:
    assert row("reason", packet) == (reason, "")


def test_endpoint_and_client_of_a_request_and_its_answer() -> None:
    request, answer = decided(), replace(samples.node_port_reply(), src_owner=POD)
    assert row("endpoint", request) == row("endpoint", answer) == ("10.244.0.11:8080", "pod default/web-a")
    assert row("client", request) == row("client", answer) == ("192.168.56.1", UNKNOWN)
    assert row("endpoint", samples.node_port()).owner == UNKNOWN, "the address of a Service's port says nothing of the pod"


def test_a_packet_without_a_connection_has_no_known_client() -> None:
    """Which of its ends asked cannot be seen."""
    packet = samples.no_socket()
    assert row("client", packet) == row("endpoint", packet) == (UNKNOWN, UNKNOWN)


@pytest.mark.parametrize("dimension", list(DIMENSIONS))
def test_every_packet_has_a_row(dimension: str) -> None:
    assert all(row(dimension, packet).text for packet in samples.every())
