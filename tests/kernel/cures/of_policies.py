# SPDX-License-Identifier: Apache-2.0
"""Cases of NetworkPolicies, with rules as Calico, kube-router and Antrea write them."""

from __future__ import annotations

from incidents import objects
from incidents.objects import Object
from tests.kernel.audit_nodes import CLIENT, MINE, NODE, PODS, PORT
from tests.kernel.cures import BuiltCase, case
from tests.kernel.cures.box import Box
from tests.support.policies import policy
from tests.support.policy_semantics import World
from tests.support.policy_writers import antrea_tables
from tests.support.policy_writers import kube_router_tables as kube_router
from tracer.predict.query import PathQuery

WEB = objects.pod("shop/web", PODS["pod-a"], "node-1", PORT)
QUERY = PathQuery(CLIENT, 40000, PODS["pod-a"], PORT)


def _limited(ingress: list[Object]) -> World:
    return World(pods=[WEB], policies=[policy("shop/deny-all"), policy("shop/allow", ingress=ingress)], node="node-1")


def _router(box: Box, back: str) -> BuiltCase:
    closed, opened = _limited([{"ports": [{"port": 80}]}]), _limited([{"ports": [{"port": PORT}]}])
    box.put(*kube_router.steps(closed, back))
    box.objects(objects.node("node-1", NODE, MINE), *closed.objects)
    return BuiltCase(
        lambda: box.predicted_findings("no_policy_allows", QUERY),
        {f"iptables-{back} -t filter -L KUBE-POD-FW-": "REJECT", "kubectl get networkpolicies -n shop": "name: allow"},
        repair=lambda: box.rewrite(*kube_router.steps(opened, back)),
    )


@case("no_policy_allows", "kube-router, legacy")
def _router_legacy(box: Box) -> BuiltCase:
    return _router(box, "legacy")


@case("no_policy_allows", "kube-router, iptables-nft")
def _router_nft(box: Box) -> BuiltCase:
    return _router(box, "nft")


def _global(denies: bool) -> str:
    """The rules of a GlobalNetworkPolicy of Calico for forwarded packets of an interface of the node."""
    deny = '-A cali-po-gnp/block -m comment --comment "cali:4" -d {}/32 -p tcp -m tcp --dport {} -j DROP'
    lines = [
        "*filter", ":cali-FORWARD - [0:0]", ":cali-thfw-cni0 - [0:0]", ":cali-po-gnp/block - [0:0]",
        '-A FORWARD -m comment --comment "cali:1" -j cali-FORWARD',
        '-A cali-FORWARD -o cni0 -m comment --comment "cali:2" -j cali-thfw-cni0',
        '-A cali-thfw-cni0 -m comment --comment "cali:3" -j cali-po-gnp/block',
        *([deny.format(PODS["pod-a"], PORT)] if denies else []), "COMMIT", "",
    ]  # fmt: skip
    return "\n".join(lines)


@case("policy_denied", "a GlobalNetworkPolicy of Calico")
def _denied(box: Box) -> BuiltCase:
    box.put(("legacy", _global(True)))
    box.objects(objects.node("node-1", NODE, MINE), WEB)
    return BuiltCase(
        lambda: box.predicted_findings("policy_denied", QUERY),
        {"iptables-legacy -t filter -L cali-po-gnp/block": "DROP"},
        repair=lambda: box.rewrite(("legacy", _global(False))),
    )


@case("policy_denied", "a ClusterNetworkPolicy of Antrea for nodes")
def _node_policy(box: Box) -> BuiltCase:
    rules = antrea_tables.saved([antrea_tables.NodeRule("deny-shop", "web", "Drop", CLIENT, (PORT,))])
    box.put(("legacy", rules))
    box.objects(objects.node("node-1", NODE, MINE))
    query = PathQuery(CLIENT, 40000, NODE, PORT)
    return BuiltCase(
        lambda: box.predicted_findings("policy_denied", query),
        {"iptables-legacy -t filter -L ANTREA-POL-INGRESS-RULES": "DROP"},
        repair=lambda: box.rewrite(("legacy", antrea_tables.saved([]))),
    )
