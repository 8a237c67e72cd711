# SPDX-License-Identifier: Apache-2.0
"""Nodes with different rules for one Service: what is certain, what is only likely, and what is no difference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.support.node_views import EPOCH, MILLI, SECOND
from tests.support.service_nodes import CART_B, CART_C, GONE, OWNER, FakeEndpoints, connection, history
from tests.support.traced_clusters import TracedCluster
from tracer.cluster_findings import cluster_context, service_rules_differ
from tracer.model.finding import Finding
from tracer.model.hop import Hop, TableHop
from tracer.model.joined_packet import NodeView
from tracer.model.kube import Endpoint, Owner
from tracer.model.namespace_name import HOST
from tracer.model.netfilter import Hook, Verdict
from tracer.model.packet import Outcome
from tracer.util.evictions import evictions

LONG = service_rules_differ.LASTS_NS + SECOND
BOTH = (CART_B, CART_C)


def found(views: Sequence[NodeView], ends: FakeEndpoints | None = None, nodes: str = "abc") -> list[Finding]:
    cluster = TracedCluster(nodes)
    cluster.findings.context.endpoints = ends or FakeEndpoints(BOTH)
    return [each for each in cluster.settle(*views) if each.name == "service_rules_differ"]


def of_others(time: int = 0, node: str = "b") -> list[NodeView]:
    """Another node chooses endpoints that the API has."""
    return [connection(node, time + MILLI, CART_B), connection(node, time + 2 * MILLI, CART_C)]


# ---- an endpoint that the API does not have ----


def test_an_endpoint_that_the_api_no_longer_has() -> None:
    ends = FakeEndpoints(BOTH, since=-LONG)
    (finding,) = found([*of_others(), connection("a", 0, GONE)], ends)
    assert finding.certain and finding.packets == 1
    assert finding.cause == (
        "Node a sends new connections to Service shop/cart to 10.244.2.77:8080, which is no endpoint of it any more: its rules"
        " are older than the endpoints of the API."
    )
    texts = [proof.text for proof in finding.proofs]
    assert texts[2] == (
        "10.244.2.77:8080 was no endpoint of Service shop/cart, ready or not, from 31 s before the packet until after it; it"
        " has 10.244.2.8:8080, 10.244.3.9:8080"
    )
    assert texts[3].startswith("node b sent new connections to Service shop/cart to 10.244.3.9:8080")
    assert "`kubectl get endpointslices -n shop -l kubernetes.io/service-name=cart -o yaml`" in finding.check
    assert ends.asked and set(ends.asked) == {"shop/cart"}


def test_all_nodes_choose_what_the_api_has() -> None:
    ends = FakeEndpoints(BOTH, since=-LONG)
    assert found([*of_others(), *of_others(SECOND, "a"), *of_others(SECOND, "c")], ends) == [] and not ends.asked


@pytest.mark.parametrize(
    ("ends", "certain"),
    [
        (FakeEndpoints(BOTH, since=-LONG), True),
        (FakeEndpoints(BOTH, since=-10 * SECOND), False),  # kube-proxy may only be late
        (FakeEndpoints(BOTH, since=-SECOND), None),
        (FakeEndpoints((*BOTH, GONE), since=-LONG), None),  # a new endpoint
        (FakeEndpoints(None), None),  # the API is not read
        (FakeEndpoints(BOTH, since=-LONG, asked=0), None),  # not since then
        (FakeEndpoints((), since=-LONG), None),  # the Service is gone, or its slices
    ],
)
def test_how_long_the_api_must_have_been_without_it(ends: FakeEndpoints, certain: bool | None) -> None:
    findings = found([*of_others(), connection("a", SECOND // 2, GONE)], ends)
    assert [finding.certain for finding in findings] == ([] if certain is None else [certain])
    if certain is False:
        assert findings[0].cause.startswith("Perhaps node a") and "may only be a little late" in findings[0].cause


def test_an_endpoint_that_is_not_ready_or_terminating_is_one() -> None:
    ends = FakeEndpoints(BOTH, since=-LONG)
    ends.found = history([*BOTH, Endpoint(*GONE, ("shop", "cart-x"), "b", ready=False)], -LONG)
    assert found([*of_others(), connection("a", 0, GONE)], ends) == []


def test_an_endpoint_that_went_a_moment_ago() -> None:
    ends = FakeEndpoints(BOTH, since=-LONG)
    assert ends.found
    ends.found = ends.found._replace(gone={("", "tcp", *GONE): EPOCH - SECOND})
    assert found([*of_others(), connection("a", 0, GONE)], ends) == []
    ends.found = ends.found._replace(gone={("", "tcp", *GONE): EPOCH - LONG})
    assert [finding.certain for finding in found([*of_others(), connection("a", 0, GONE)], ends)] == [True]


@pytest.mark.parametrize(
    "others",
    [
        [],  # no other node
        [connection("b", MILLI, GONE)],  # it agrees with this one
        [connection("b", MILLI, CART_B), connection("b", 2 * MILLI, GONE)],
        [connection("b", MILLI - 2 * LONG, CART_B)],  # long ago
        [connection("b", MILLI, CART_B, from_conntrack=True)],  # an old connection
    ],
)
def test_without_another_node_that_is_up_to_date_it_is_only_likely(others: list[NodeView]) -> None:
    findings = found([*others, connection("a", 0, GONE)], FakeEndpoints(BOTH, since=-LONG))
    of_a = [finding for finding in findings if finding.key[1] == "a"]
    assert [finding.certain for finding in of_a] == [False] and "the API may be wrong" in of_a[0].cause


@pytest.mark.parametrize(
    "values",
    [
        {"from_conntrack": True},  # the connection is older
        {"is_undecided": True},  # the rule is not known
        {"owner": Owner("Pod", "shop", "db", detail="hostPort 80")},  # another program's rule
        {"owner": Owner("administrator")},
        {"owner": None},
        {"owner": replace(OWNER, name="other")},
        {"complete": False},  # events were lost
        {"tcp_flags": "ACK"},
    ],
)
def test_a_translation_that_rules_of_the_service_did_not_choose_now(values: dict[str, Any]) -> None:
    assert found([*of_others(), connection("a", 0, GONE, **values)], FakeEndpoints(BOTH, since=-LONG)) == []


def test_clocks_that_are_not_known() -> None:
    ends, odd = FakeEndpoints(BOTH, since=-LONG), connection("a", 0, GONE)
    assert found([*of_others(), replace(odd, offset=None)], ends) == []
    assert found([*of_others(), replace(odd, error=SECOND)], ends) == []


# ---- no translation at all ----


def bare(node: str, *times: int, **values: Any) -> list[NodeView]:
    return [connection(node, time, **values) for time in times]


def translated(node: str, *times: int) -> list[NodeView]:
    return [connection(node, time, CART_B) for time in times]


def test_a_node_without_rules_for_a_service() -> None:
    (finding,) = found([*bare("a", 0, SECOND, LONG), *translated("b", -MILLI, LONG + MILLI)])
    assert finding.certain and finding.cause == (
        "Node a has other rules than node b for new connections to cluster IP 172.30.0.10:80 of Service shop/cart: node b sends"
        " them to endpoints, and node a does not translate them."
    )
    texts = [proof.text for proof in finding.proofs]
    assert texts[1] == "node a did so with 3 new connections in 31 s, and translated none meanwhile"
    assert texts[3] == "Service shop/cart has 10.244.2.8:8080, 10.244.3.9:8080"


@pytest.mark.parametrize(
    ("views", "certain"),
    [
        ([*bare("a", 0, SECOND), *translated("b", -MILLI, 2 * SECOND)], False),  # too short
        ([*bare("a", 0), *translated("b", -MILLI, LONG)], None),  # once
        ([*bare("a", 0, LONG)], None),  # no other node
        ([*bare("a", 0, SECOND), *translated("b", LONG, LONG + SECOND)], None),  # the Service is new
        ([*bare("a", LONG, LONG + SECOND), *translated("b", 0, SECOND)], None),  # the Service has gone
        ([*bare("a", 0, LONG), *translated("b", -MILLI, LONG), *translated("a", LONG + SECOND)], None),  # it has them now
        ([*bare("a", 0, LONG, nat_ran=False), *translated("b", -MILLI, LONG + MILLI)], False),
        ([*bare("a", 0, LONG, complete=False), *translated("b", -MILLI, LONG + MILLI)], None),
        ([*bare("a", 0, LONG, untracked="UNTRACKED"), *translated("b", -MILLI, LONG + MILLI)], None),
        ([*bare("a", 0, LONG, tcp_flags="ACK"), *translated("b", -MILLI, LONG + MILLI)], None),
        ([*bare("a", 0, LONG, outcome=Outcome.DROPPED), *translated("b", -MILLI, LONG + MILLI)], None),  # by an unknown rule
        ([*bare("a", 0, LONG, outcome=Outcome.DELIVERED), *translated("b", -MILLI, LONG + MILLI)], None),  # a local cache
        ([*bare("a", 0, LONG), *bare("b", MILLI, LONG), *translated("b", -MILLI)], None),  # both have lost them
    ],
)
def test_how_long_nodes_must_have_differed(views: list[NodeView], certain: bool | None) -> None:
    views = sorted(views, key=lambda each: each.packet.time)
    assert [finding.certain for finding in found(views)] == ([] if certain is None else [certain])


def test_a_packet_that_is_sent_again_is_no_new_connection() -> None:
    first = connection("a", -2 * MILLI, sport=7, nat_ran=False)
    again = [connection("a", time, sport=7, nat_ran=False) for time in (SECOND, LONG)]
    others = translated("b", -MILLI, LONG + MILLI)
    assert found([connection("a", 0, sport=7), *again, *others]) == [], "one connection"
    (finding,) = found([first, connection("a", 0, sport=7), *again, connection("a", LONG, sport=9), *others])
    assert finding.certain and "with 2 new connections" in finding.proofs[1].text


def test_a_service_without_endpoints_is_refused_by_the_node_that_is_right() -> None:
    views = [*bare("a", 0, LONG), *translated("b", -MILLI, LONG + MILLI)]
    assert found(views, FakeEndpoints(())) == []
    (finding,) = found(views, FakeEndpoints(None))
    assert finding.certain, "that the nodes differ needs no API"


def refused(node: str, time: int, detail: str) -> NodeView:
    view = connection(node, time)
    owner = replace(OWNER, detail=detail)
    hop: Hop = TableHop(20, HOST, Hook.FORWARD, table="filter", verdict=Verdict.REJECT, reject="x", owner=owner)
    return replace(view, packet=replace(view.packet, hops=(*view.packet.hops[:2], hop), outcome=Outcome.REJECTED))


def test_a_node_that_refuses_for_lack_of_endpoints() -> None:
    views = [refused("a", 0, "no endpoints"), refused("a", LONG, "no endpoints")]
    (finding,) = found([*views, *translated("b", -MILLI, LONG + MILLI)])
    assert finding.certain and "node a refuses them because it has no endpoints" in finding.cause
    by_policy = "cluster IP, no local endpoints (internalTrafficPolicy Local)"
    views = [refused("a", 0, by_policy), refused("a", LONG, by_policy)]
    assert found([*views, *translated("b", -MILLI, LONG + MILLI)]) == []


def test_names_that_no_shell_takes_are_in_no_command() -> None:
    cluster = TracedCluster("ab")
    service = cluster.nodes.service_at("172.30.0.10", 80, "tcp")
    assert service
    odd = replace(service[0], name="x; reboot")
    check = service_rules_differ._check("a", odd, connection("a", 0).packet)
    assert "kubectl" not in check and "reboot" not in check


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_context, "SERVICES_KEPT", 1)
    evictions.read()
    assert found([*translated("a", 0), *translated("b", 1), *bare("c", 2)]) == []
    assert evictions.read()["Services of nodes"] >= 2
    cluster = TracedCluster("ab")
    use = [connection("a", n, (f"10.0.0.{n}", 1)) for n in range(1, 40)]
    cluster.settle(*use)
    ((_, kept),) = cluster.findings.context.services.items()
    assert len(kept.chosen) == cluster_context.CHOSEN_KEPT
