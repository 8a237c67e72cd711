# SPDX-License-Identifier: Apache-2.0
"""What NetworkPolicies allow: each part of their meaning, and what is not known."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.policies import cluster, namespace, node, pod, policy
from tracer.kube.catalog import ClusterView
from tracer.kube.policies.evaluation import DirectionAnswer, end_at, evaluate
from tracer.kube.policies.policy_words import reason
from tracer.model.policy import EGRESS, INGRESS

WEB = pod("shop/web", "10.0.0.1", ports=[("http", 8080), ("dns", 53, "UDP")], app="web")
CLIENT, OTHER, DB = (
    pod("shop/client", "10.0.0.2", app="client"),
    pod("shop/other", "10.0.0.3"),
    pod("db/pg", "10.0.0.4", app="pg"),
)
HOST = pod("shop/agent", "192.168.0.1", host=True)
NODES = node("node-1", "192.168.0.1"), node("node-2", "192.168.0.2")
FAR = {
    "kind": "EndpointSlice",
    "metadata": {"namespace": "shop", "name": "far-1", "labels": {"kubernetes.io/service-name": "far"}},
    "endpoints": [{"addresses": ["10.0.9.9"], "targetRef": {"kind": "Pod", "namespace": "shop", "name": "far"}}],
    "ports": [{"name": "", "port": 80, "protocol": "TCP"}],
}
SERVICE = {
    "kind": "Service",
    "metadata": {"namespace": "shop", "name": "far"},
    "spec": {"clusterIP": "None", "ports": [{"port": 80}]},
}


def view(*objects: Any) -> ClusterView:
    return cluster(WEB, CLIENT, OTHER, DB, HOST, *NODES, SERVICE, FAR, *objects)


def asked(
    *objects: Any, source: str = "10.0.0.2", to: str = "10.0.0.1", port: int = 8080, protocol: str = "tcp", way: str = INGRESS
) -> DirectionAnswer:
    of = view(*objects)
    subject = of.store.by_pod_ip.one(to if way == INGRESS else source)
    assert subject
    return evaluate(way, subject, source, to, protocol, port, of)


def rule(*peers: Any, ports: Any = (), side: str = "from") -> dict[str, Any]:
    found: dict[str, Any] = {side: list(peers)} if peers else {}
    return found | ({"ports": list(ports)} if ports else {})


APP = {"podSelector": {"matchLabels": {"app": "client"}}}


@pytest.mark.parametrize(
    ("ingress", "ends", "allows"),
    [
        ([], {}, False),
        ([{}], {}, True),
        ([rule(APP)], {}, True),
        ([rule(APP)], {"source": "10.0.0.3"}, False),
        ([rule(APP)], {"source": "10.0.0.4"}, False),
        ([rule({"podSelector": {}})], {"source": "10.0.0.3"}, True),
        ([rule({"podSelector": {}})], {"source": "10.0.0.4"}, False),
        ([rule({"podSelector": {}})], {"source": "192.168.0.2"}, False),
        ([rule({"podSelector": {}})], {"source": "10.7.7.7"}, None),
        ([rule({"podSelector": {}})], {"source": "10.0.9.9"}, True),
        ([rule(APP)], {"source": "10.0.9.9"}, None),
        ([rule({"namespaceSelector": {}})], {"source": "10.0.0.4"}, True),
        ([rule({"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "db"}}})], {"source": "10.0.0.4"}, True),
        ([rule({"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "db"}}})], {}, False),
        ([rule({"namespaceSelector": {"matchLabels": {"team": "x"}}})], {"source": "10.0.0.4"}, None),
        ([rule({"namespaceSelector": {"matchLabels": {"team": "x"}}, **APP})], {"source": "10.0.0.4"}, False),
        ([rule({"ipBlock": {"cidr": "10.0.0.0/24"}})], {}, True),
        ([rule({"ipBlock": {"cidr": "10.0.0.0/24", "except": ["10.0.0.2/31"]}})], {}, False),
        ([rule({"ipBlock": {"cidr": "10.0.0.0/24", "except": ["10.0.0.2/31"]}})], {"source": "10.0.0.4"}, True),
        ([rule({"ipBlock": {"cidr": "fd00::/8"}})], {}, False),
        ([rule(ports=[{"port": 8080}])], {}, True),
        ([rule(ports=[{"port": 80}])], {}, False),
        ([rule(ports=[{"port": 8080, "protocol": "UDP"}])], {}, False),
        ([rule(ports=[{"protocol": "TCP"}])], {}, True),
        ([rule(ports=[{"port": 8000, "endPort": 8080}])], {}, True),
        ([rule(ports=[{"port": 8000, "endPort": 8079}])], {}, False),
        ([rule(ports=[{"port": "http"}])], {}, True),
        ([rule(ports=[{"port": "dns", "protocol": "UDP"}])], {"port": 53, "protocol": "udp"}, True),
        ([rule(ports=[{"port": "dns"}])], {"port": 53}, False),
        ([rule(APP, ports=[{"port": 80}]), rule({"ipBlock": {"cidr": "0.0.0.0/0"}}, ports=[{"port": 8080}])], {}, True),
        ([rule(APP, {"ipBlock": {"cidr": "10.0.0.3/32"}})], {"source": "10.0.0.3"}, True),
    ],
)
def test_ingress(ingress: list[Any], ends: dict[str, Any], allows: bool | None) -> None:
    found = asked(policy("shop/p", {"app": "web"}, ingress=ingress), **ends)
    assert found.allows is allows and len(found.policies) == 1


@pytest.mark.parametrize(
    ("labels", "selector", "is_selected"),
    [
        ({"app": "web"}, {"matchExpressions": [{"key": "app", "operator": "In", "values": ["web", "x"]}]}, True),
        ({"app": "web"}, {"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["web"]}]}, False),
        ({}, {"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["web"]}]}, True),
        ({"app": "web"}, {"matchExpressions": [{"key": "app", "operator": "Exists"}]}, True),
        ({"app": "web"}, {"matchExpressions": [{"key": "app", "operator": "DoesNotExist"}]}, False),
        ({"app": "web"}, {"matchLabels": {"app": "web", "tier": "a"}}, False),
        ({}, {}, True),
    ],
)
def test_selectors(labels: dict[str, Any], selector: Any, is_selected: bool) -> None:
    body = policy("a/p")
    body["spec"]["podSelector"] = selector
    of = cluster(pod("a/x", "10.1.1.1", **labels), body)
    (found,) = of.store.pods.all(("a", "x"))
    assert evaluate(INGRESS, found, "10.1.1.2", "10.1.1.1", "tcp", 1, of).allows is not is_selected


def test_several_policies_allow_together() -> None:
    deny, allow = policy("shop/deny"), policy("shop/allow", {"app": "web"}, ingress=[rule(APP)])
    assert asked(deny, allow).allows is True
    assert asked(deny, allow, source="10.0.0.3").allows is False
    assert asked(deny, policy("db/allow", ingress=[{}])).allows is False, "of another namespace"
    assert asked(policy("shop/q", {"app": "pg"})).allows is True, "no policy selects the pod"
    assert asked(allow, policy("shop/labels", ingress=[rule({"namespaceSelector": {"matchLabels": {"a": "b"}}})]),
                 source="10.0.0.3").allows is None  # fmt: skip


def test_directions() -> None:
    both, only = policy("shop/p", policyTypes=["Ingress", "Egress"]), policy("shop/p", egress=[], policyTypes=["Egress"])
    out: dict[str, Any] = {"source": "10.0.0.1", "to": "10.0.0.4", "way": EGRESS}
    assert asked(both).allows is False and asked(both, **out).allows is False
    assert asked(only).allows is True and asked(only, **out).allows is False
    assert asked(policy("shop/p"), **out).allows is True, "without policyTypes and egress it limits ingress only"
    implied = policy("shop/p", egress=[rule({"namespaceSelector": {}}, side="to", ports=[{"port": "pg"}])])
    assert asked(implied).allows is False, "an egress rule does not take ingress away"
    named = asked(implied, pod("db/pg", "10.0.0.4", ports=[("pg", 5432)], app="pg"), **out, port=5432)
    assert named.allows is True, "a name is one of the destination"
    assert asked(implied, **{**out, "to": "10.0.9.9"}, port=80).allows is None, "the ports of that pod are not known"


def test_a_pod_in_the_network_of_its_node_and_the_pods_own_node() -> None:
    of = view(policy("shop/deny"))
    (host,) = of.store.pods.all(("shop", "agent"))
    assert evaluate(INGRESS, host, "10.0.0.2", "192.168.0.1", "tcp", 80, of).exempt == "the pod is in the network of its node"
    from_node = asked(policy("shop/deny"), source="192.168.0.1")
    assert from_node.allows and from_node.exempt == "the pod's own node sent it"
    assert asked(policy("shop/deny"), source="192.168.0.2").allows is False, "another node"


def test_labels_of_namespaces_are_used_if_they_are_known() -> None:
    body = policy("shop/p", ingress=[rule({"namespaceSelector": {"matchLabels": {"team": "x"}}})])
    assert asked(body, namespace("db", team="x"), source="10.0.0.4").allows is True
    assert asked(body, namespace("db", team="y"), source="10.0.0.4").allows is False


def test_ends() -> None:
    of = view()
    texts = [end_at(address, of).text for address in ("10.0.0.1", "10.0.9.9", "192.168.0.2", "10.7.7.7")]
    assert texts == ["pod shop/web", "pod shop/far", "node 192.168.0.2", "10.7.7.7"]


TEAM = {"namespaceSelector": {"matchLabels": {"team": "x"}}, "podSelector": {}}
BLOCK = {"ipBlock": {"cidr": "10.0.0.0/24", "except": ["10.0.0.2/31"]}}


@pytest.mark.parametrize(
    ("ingress", "text"),
    [
        ([], "it has no ingress rule"),
        (
            [rule(APP, ports=[{"port": 80}])],
            "ingress rule 1 allows tcp 80, not tcp 8080, and only from pods with app=client of its namespace,"
            " not pod shop/other",
        ),
        (
            [rule(TEAM)],
            "ingress rule 1 allows only from all pods of namespaces with team=x"
            " (not known whether pod shop/other is one of them)",
        ),
        (
            [rule(BLOCK), rule(ports=[{"port": 1, "endPort": 9}, {"port": "x"}])],
            "ingress rule 1 allows only from 10.0.0.0/24 without 10.0.0.2/31, not pod shop/other;"
            " ingress rule 2 allows tcp 1-9 or tcp x, not tcp 8080",
        ),
        ([{}], "its ingress rule 1 allows it, by the objects of the API"),
    ],
)
def test_reasons(ingress: list[Any], text: str) -> None:
    found = asked(policy("shop/p", {"app": "web"}, ingress=ingress), source="10.0.0.3")
    assert reason(found.policies[0], found, "tcp", 8080) == text


@pytest.mark.parametrize(
    "spec",
    [
        {"ingress": [rule({"ipBlock": {"cidr": "10.0.0.0/33"}})]},
        {"podSelector": {"matchExpressions": [{"key": "a", "operator": "Gt", "values": ["1"]}]}},
        {"ingress": [{"from": [1]}]},
        {"ingress": [{"ports": [{"port": []}]}]},
        {"podSelector": []},
    ],
)
def test_an_invalid_policy_is_not_used(spec: Any) -> None:
    body = policy("shop/p", ingress=[])
    body["spec"].update(spec)
    store = cluster(body).store
    assert (store.unreadable, store.policies.values()) == (1, [])
