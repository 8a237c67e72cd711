# SPDX-License-Identifier: Apache-2.0
"""Policy Local, and a rule that masquerades requests from outside all the same."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "vagrant"))

from incidents import objects
from tests.support import findings as f
from tracer.kube.catalog import ClusterView
from tracer.model.endpoints import Endpoints
from tracer.model.evidence import Evidence
from tracer.model.finding import Finding
from tracer.model.hop import Hop, Nat, NatHop
from tracer.model.kube import ObjectReference
from tracer.model.namespace_name import HOST
from tracer.model.netfilter import Hook
from tracer.model.packet import Packet
from tracer.model.rule import RuleHit, RuleLocation, Ruleset, RuleTrace
from tracer.rules import save_parser

NODE, POD = "192.168.56.10", "10.244.0.11"
ASKED = Endpoints(f.CLIENT, 40000, NODE, 30306)
INSIDE = replace(ASKED, dst=POD, dport=8080)
BY_NODE = replace(INSIDE, src="10.244.0.1", sport=6000)
ADMINISTRATOR = "-A POSTROUTING -d 10.244.0.0/16 -j MASQUERADE"
AGENT = '-A IP-MASQ-AGENT -m comment --comment "ip-masq-agent: outbound traffic is subject to MASQUERADE" -j MASQUERADE'
KUBE_PROXY = '-A KUBE-POSTROUTING -m comment --comment "kubernetes service traffic requiring SNAT" -j MASQUERADE --random-fully'


def cluster(policy: str = "Local") -> ClusterView:
    return f.view(
        [
            objects.node("node-1", NODE, "10.244.0.0/24"),
            objects.node("node-2", "192.168.56.20", "10.244.1.0/24"),
            objects.service("shop/orders", "172.30.1.10", 80, 30306, "web", externalTrafficPolicy=policy),
            objects.endpoints("shop/orders", [("orders-1", POD, "node-1")], 8080, "web"),
            objects.pod("shop/orders-1", POD, "node-1", 8080),
        ],
        NODE, "10.244.0.1",
    )  # fmt: skip


def nat(hook: Hook, kind: str, before: Endpoints, after: Endpoints, line: str = "", **more: object) -> Hop:
    rules = save_parser.parse(f"*nat\n{line}\n") if line else Ruleset("legacy", 0, "", {})
    hits = tuple(
        RuleHit((RuleLocation(r.chain, r.number),), r, r.target, Evidence.OBSERVED)
        for chain in rules.chains.values()
        for r in chain
    )
    hop = NatHop(0, HOST, hook, nat=Nat(kind, before, after), rule_trace=RuleTrace(hits, ruleset=rules))
    return replace(hop, **more)  # type: ignore[arg-type]


def packet(line: str = ADMINISTRATOR, source: str = f.CLIENT, asked: str = NODE, hops: Sequence[Hop] | None = None) -> Packet:
    first = replace(ASKED, src=source, dst=asked, dport=30306 if asked == NODE else 80)
    inside = replace(INSIDE, src=source)
    return f.packet(
        [nat(Hook.PREROUTING, "DNAT", first, inside), nat(Hook.POSTROUTING, "MASQUERADE", inside, BY_NODE, line)]
        if hops is None
        else hops,
        first,
    )


def found(made: Packet, policy: str = "Local") -> list[Finding]:
    return f.findings_of([made], cluster(policy), f.FakeNode())[1]


@pytest.mark.parametrize(
    ("line", "who", "cure"),
    [
        (ADMINISTRATOR, "a rule of the administrator", "Change the rule so that it masquerades only what pods send"),
        (AGENT, "a rule of ip-masq-agent, chain IP-MASQ-AGENT", "Add the pods' networks to nonMasqueradeCIDRs"),
        (KUBE_PROXY, "a rule of kube-proxy KUBE-POSTROUTING", "Find the rule that sets kube-proxy's masquerade mark"),
        ("-A FLANNEL-POSTRTG -j MASQUERADE", "a rule of flannel", "Change the configuration of the program"),
    ],
)
def test_a_rule_hides_the_client(line: str, who: str, cure: str) -> None:
    (finding,) = found(packet(line))
    assert finding.name == "client_address_hidden" and finding.certain
    assert finding.subject == ObjectReference("Service", "shop", "orders")
    assert finding.cause == (
        f"Service shop/orders:web has externalTrafficPolicy Local so that its pods see their clients' addresses, but {who}"
        " rewrites the source of requests from outside: pod shop/orders-1 (node-1) sees 10.244.0.1 instead of 192.168.56.1."
    )
    assert finding.cure.startswith(cure)
    assert line.partition(" ")[2].partition(" ")[2] in f.proofs(finding, "rule")[0]
    assert f"iptables-legacy -t nat -L {line.split()[1]}" in finding.check


def test_the_rule_may_be_unknown() -> None:
    (finding,) = found(packet(""))
    assert "a rule of an unknown program" in finding.cause and not f.proofs(finding, "rule")
    assert "kubectl get service -n shop orders" in finding.check


@pytest.mark.parametrize(
    "source", [NODE, "192.168.56.20", POD, "10.244.1.7"], ids=["node", "other node", "pod", "pod elsewhere"]
)
def test_requests_from_inside_have_no_such_promise(source: str) -> None:
    assert found(packet(source=source)) == []


def test_a_cluster_ip_has_no_such_promise() -> None:
    assert found(packet(asked="172.30.1.10")) == []


def test_the_policy_cluster_has_no_such_promise() -> None:
    assert found(packet(), "Cluster") == []


def test_a_client_whose_address_is_kept_is_no_finding() -> None:
    assert found(packet(hops=[nat(Hook.PREROUTING, "DNAT", ASKED, INSIDE)])) == []


def test_a_translation_that_conntrack_repeats_is_not_decided_now() -> None:
    again = [
        nat(Hook.PREROUTING, "DNAT", ASKED, INSIDE, from_conntrack=True),
        nat(Hook.POSTROUTING, "MASQUERADE", INSIDE, BY_NODE, from_conntrack=True),
    ]
    assert found(packet(hops=again)) == []
