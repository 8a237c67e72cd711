# SPDX-License-Identifier: Apache-2.0
"""The search for packets by text."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support import sample_packets as samples
from tests.support.screens import numbered
from tests.unit.ui.test_kept_connections import verdict
from tracer.model.evidence import Evidence
from tracer.model.kube import Owner
from tracer.model.packet import Packet
from tracer.model.rule import Rule, RuleHit, RuleLocation, RuleTrace
from tracer.packets.joined_views import first_packet
from tracer.ui.kept_connections import KeptConnections
from tracer.ui.text_search import ConnectionSearch, TextSearch

RULE = Rule("ip", "nat", "KUBE-SEP-Y", 2, "-p tcp -j DNAT --to-destination 10.244.0.11:8080", target="DNAT")


def described() -> Packet:
    """A packet with a rule, owners and a Service."""
    packet = samples.node_port()
    hit = RuleHit((RuleLocation("PREROUTING", 1), RuleLocation("KUBE-SEP-Y", 2)), RULE, "DNAT", Evidence.OBSERVED)
    owner = Owner("Service", "shop", "cart", "http", detail="NodePort 30285", target="pod shop/cart-a")
    packet = samples.with_hop(packet, 2, rule_trace=RuleTrace((hit,)), owner=owner)
    return replace(packet, src_owner=Owner("external"), dst_owner=Owner("Pod", "shop", "cart-a"))


@pytest.mark.parametrize(
    "words",
    ["", "30285", "192.168.56.10:30285", "10.244.0.11:8080", "23711", "shop/cart", "SHOP/CART:HTTP", "pod shop/cart-a", "dnat",
     "KUBE-SEP-Y 2", "to-destination", "delivered", "nginx", "pid 4242", "eth0 cni0", "SYN tcp NEW", "30285  shop"],
)  # fmt: skip
def test_what_is_found(words: str) -> None:
    assert TextSearch(words).matches(described())


@pytest.mark.parametrize("words", ["30286", "shop nothing", "dropped", "KUBE-SEP-Z", "udp"])
def test_what_is_not_found(words: str) -> None:
    assert not TextSearch(words).matches(described())


def test_drops_are_found_by_reason_function_and_cause() -> None:
    for words in ("no_socket", "__udp4_lib_rcv", "refused"):
        assert TextSearch(words).matches(samples.no_socket())
    assert TextSearch("no endpoints").matches(samples.rejected(), "no endpoints: so")


def test_ports_of_other_packets_of_a_path_are_not_found() -> None:
    kept = KeptConnections()
    for packet in numbered(50, 50):
        kept.add(packet)
    found = ConnectionSearch(TextSearch("10.0.0.1:10007")).select(kept.in_order())
    assert [first_packet(connection.start).endpoints.sport for connection in found] == [10_007]


def test_a_connection_is_found_as_soon_as_a_packet_or_a_verdict_matches() -> None:
    kept, search = KeptConnections(), ConnectionSearch(TextSearch("late"))
    first, second = numbered(2)
    kept.add(first)
    assert search.select(kept.in_order()) == []
    kept.add(replace(second, verdict="late"))
    assert [each.packets for each in search.select(kept.in_order())] == [2] and search.search.packets(kept.in_order()[0])
    other, syn = KeptConnections(), samples.rejected()
    other.add(syn)
    search = ConnectionSearch(TextSearch("no endpoints"))
    assert search.select(other.in_order()) == []
    other.add_verdict(verdict(syn, "no endpoints"))
    assert len(search.select(other.in_order())) == 1


def test_packets_are_searched_once() -> None:
    kept, searched = KeptConnections(), []
    search = ConnectionSearch(TextSearch("nothing"))
    matches = search.search.matches
    search.search.matches = lambda packet, cause="": searched.append(packet) or matches(packet, cause)  # type: ignore
    for packet in numbered(30):
        kept.add(packet)
        search.select(kept.in_order())
        search.select(kept.in_order())
    assert len(searched) == 30
