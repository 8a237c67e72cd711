# SPDX-License-Identifier: Apache-2.0
"""The Service and the pods of a packet."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support import sample_packets
from tests.support.sample_packets import with_hop
from tracer.analysis.packet_attribution import NOBODY, Attribution, attribution_of
from tracer.model.evidence import Evidence
from tracer.model.kube import Owner, pod_of_text, pod_text
from tracer.model.rule import Rule, RuleHit, RuleLocation, RuleTrace

CART = Owner("Service", "shop", "cart", "http", target=pod_text("shop", "cart-a", "node-1"))
OTHER = Owner("Service", "shop", "orders")
CLIENT = Owner("Pod", "web", "front-1")
DNAT = 2
"""Index of the DNAT in sample_packets.node_port()."""


def test_a_service_by_its_address_is_derived() -> None:
    packet = replace(sample_packets.node_port(), dst_owner=OTHER, src_owner=CLIENT)
    assert attribution_of(packet) == Attribution("orders", "shop", "", "derived", client="front-1", client_namespace="web")


def test_the_rule_that_acted_comes_before_the_address() -> None:
    trace = RuleTrace(
        (RuleHit((RuleLocation("KUBE-SEP-X", 2),), Rule("ip", "nat", "KUBE-SEP-X", 2, ""), "DNAT", Evidence.OBSERVED),)
    )
    packet = with_hop(replace(sample_packets.node_port(), dst_owner=OTHER), DNAT, owner=CART, rule_trace=trace)
    found = attribution_of(packet)
    assert (found.service, found.service_evidence, found.workload, found.workload_namespace) == (
        "cart",
        "observed",
        "cart-a",
        "shop",
    )


def test_a_rewrite_without_a_rule_is_derived() -> None:
    """Its owner follows from the addresses before and after it."""
    assert attribution_of(with_hop(sample_packets.node_port(), DNAT, owner=CART)).service_evidence == "derived"


def test_a_copy_says_nothing() -> None:
    assert attribution_of(with_hop(sample_packets.node_port(), DNAT, owner=CART, clone=True)) == NOBODY


def test_a_host_port_has_a_pod_and_no_service() -> None:
    owner = Owner("Pod", "db", "mysql-b", program="portmap", detail="hostPort 3306")
    found = attribution_of(with_hop(sample_packets.node_port(), DNAT, owner=owner))
    assert (found.service, found.workload, found.namespace) == ("", "mysql-b", "db")


def test_in_a_reply_the_source_serves() -> None:
    packet = replace(sample_packets.node_port_reply(), src_owner=Owner("Pod", "shop", "cart-a"), dst_owner=CLIENT)
    found = attribution_of(packet)
    assert (found.workload, found.client, found.service) == ("cart-a", "front-1", "")


def test_an_observed_service_replaces_a_derived_one() -> None:
    derived, observed = (
        Attribution("orders", "shop", "", "derived", "a", "shop"),
        Attribution("cart", "shop", "http", "observed"),
    )
    expected = Attribution("cart", "shop", "http", "observed", "a", "shop")
    assert derived.completed_by(observed) == observed.completed_by(derived) == expected
    assert NOBODY.completed_by(derived) == derived.completed_by(NOBODY) == derived


@pytest.mark.parametrize(("namespace", "name", "node"), [("shop", "cart-a", "node-1"), ("shop", "cart-a", "")])
def test_a_pod_is_read_from_its_text(namespace: str, name: str, node: str) -> None:
    assert pod_of_text(pod_text(namespace, name, node)) == (namespace, name)


@pytest.mark.parametrize(
    "text", ["", "node node-1", "this node", "pod a", "pod a/b c", "pod a/b (c) d", "pod a/b/c", "x pod a/b"]
)
def test_other_texts_name_no_pod(text: str) -> None:
    assert pod_of_text(text) == ("", "")
