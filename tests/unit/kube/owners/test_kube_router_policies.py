# SPDX-License-Identifier: Apache-2.0
"""The NetworkPolicy behind a rule of kube-router, with the comments before and since 2.11."""

from __future__ import annotations

import pytest

from tests.support.policies import cluster, pod, policy
from tracer.kube.catalog import ClusterView
from tracer.kube.fwmarks import MarkTracker
from tracer.kube.owners import denial_of, owner_of
from tracer.kube.policies.kube_router_names import digest
from tracer.model.evidence import Evidence
from tracer.model.kube import Owner
from tracer.model.rule import RuleHit, RuleLocation, Ruleset
from tracer.rules import save_parser

WEB = pod("shop/web", "10.0.0.1", app="web")
ALLOW = policy(
    "shop/allow-web",
    {"app": "web"},
    ingress=[{"from": [{"podSelector": {}}]}, {"ports": [{"port": 81}]}, {"from": [{"ipBlock": {"cidr": "10.9.0.0/16"}}]}],
)
DENY = policy("shop/deny-all", policyTypes=["Ingress", "Egress"])
FW, ALLOWS, DENIES = "KUBE-POD-FW-AAAAAAAAAAAAAAAA", "KUBE-NWPLCY-BBBBBBBBBBBBBBBB", "KUBE-NWPLCY-CCCCCCCCCCCCCCCC"
OLD = {
    "jump": "run through nw policy {}",
    "pods": "rule to ACCEPT traffic from source pods to dest pods selected by policy name allow-web namespace shop",
    "any": "rule to ACCEPT traffic from all sources to dest pods selected by policy name: allow-web namespace shop",
    "reject": "rule to REJECT traffic destined for POD name:web namespace: shop",
    "in": f"rule to jump traffic destined to POD name:web namespace: shop to chain {FW}",
}
NEW = {
    "jump": "shop/{} policy",
    "pods": "shop/allow-web ingress pods",
    "any": "shop/allow-web ingress any",
    "reject": "shop/web reject",
    "in": "shop/web in",
}


def rules(said: dict[str, str], family: str = "IPv4", only_deny: bool = False, comments: bool = True) -> Ruleset:
    target = f"-m set --match-set KUBE-DST-{digest(f'shopallow-web{family}')} dst"
    pods = f"-m set --match-set KUBE-SRC-{digest(f'shopallow-webingressrule0{family}pod')} src"
    block = f"-m set --match-set KUBE-SRC-{digest(f'shopallow-webingressrule2{family}ipblock')} src"
    accept = "-j MARK --set-xmark 0x10000/0x10000"
    lines = [
        f'-A KUBE-ROUTER-FORWARD -d 10.0.0.1/32 -m comment --comment "{said["in"]}" -j {FW}',
        "-A KUBE-ROUTER-FORWARD -m mark --mark 0x20000/0x20000 -j ACCEPT",
        f"-A {FW} -j KUBE-NWPLCY-COMMON",
        f'-A {FW} -m comment --comment "{said["jump"].format("deny-all")}" -j {DENIES}',
    ]
    if not only_deny:
        lines.append(f'-A {FW} -d 10.0.0.1/32 -m comment --comment "{said["jump"].format("allow-web")}" -j {ALLOWS}')
    lines += [
        f'-A {FW} -m comment --comment "{said["reject"]}" -m mark ! --mark 0x10000/0x10000 -j REJECT',
        f"-A {FW} -j MARK --set-xmark 0x20000/0x20000",
        f'-A {ALLOWS} -m comment --comment "{said["pods"]}" {pods} {target} {accept}',
        f'-A {ALLOWS} -m comment --comment "{said["any"]}" {target} -p tcp --dport 81 {accept}',
        f'-A {ALLOWS} -m comment --comment "{said["pods"]}" {block} {target} {accept}',
    ]
    if not comments:
        lines = [line.partition(" -m comment")[0] + line.rpartition('"')[2] for line in lines]
    return save_parser.parse("\n".join(["*filter", f":{DENIES} - [0:0]", *lines]))


def owner(found: Ruleset, chain: str, number: int, view: ClusterView) -> Owner:
    return owner_of(found.chain("ip", "filter", chain)[number - 1], found, view)


@pytest.mark.parametrize("family", ["", "IPv4", "IPv6"])
@pytest.mark.parametrize("said", [OLD, NEW], ids=["old", "new"])
def test_a_rule_of_a_policy(said: dict[str, str], family: str) -> None:
    found, view = rules(said, family), cluster(WEB, ALLOW, DENY)
    owners = [owner(found, ALLOWS, n, view) for n in (1, 2, 3)]
    assert [one.text for one in owners] == [f"NetworkPolicy shop/allow-web, ingress rule {n} (kube-router)" for n in (1, 2, 3)]
    assert owners[0].evidence == "API: comment, ipset hash"


@pytest.mark.parametrize("said", [OLD, NEW], ids=["old", "new"])
def test_the_end_of_a_pods_chain(said: dict[str, str]) -> None:
    view = cluster(WEB, ALLOW, DENY)
    assert owner(rules(said), FW, 4, view).text == (
        "NetworkPolicies shop/deny-all and shop/allow-web, policies of pod shop/web, nothing in them allows it (kube-router)"
    )
    found = rules(said, only_deny=True)
    assert owner(found, FW, 3, view).label == "shop/deny-all"
    denial = denial_of(found.chain("ip", "filter", FW)[2], found, view)
    assert denial and (denial.pod, denial.direction, denial.policies[0].direction) == (("shop", "web"), "", "")
    both = rules(said)
    denial = denial_of(both.chain("ip", "filter", FW)[3], both, view)
    assert denial and denial.address == "10.0.0.1" and [p.direction for p in denial.policies] == ["", "ingress"]


def test_names_are_known_from_rules_alone() -> None:
    one = owner(rules(OLD), ALLOWS, 1, ClusterView())
    assert (one.label, one.evidence, one.detail) == ("shop/allow-web", "comment, ipset hash", "ingress")


def test_a_comment_that_its_sets_contradict_is_not_used() -> None:
    said = {**OLD, "pods": OLD["pods"].replace("allow-web", "allow-all"), "jump": "run through nw policy other"}
    found = rules(said)
    assert owner(found, ALLOWS, 1, ClusterView()).kind == "unknown"
    assert not owner(found, FW, 4, ClusterView()).known


def test_without_comments_the_sets_name_the_policy() -> None:
    found = rules(OLD, comments=False)
    assert owner(found, ALLOWS, 1, cluster(WEB, ALLOW)).text == "NetworkPolicy shop/allow-web, ingress rule 1 (kube-router)"
    assert owner(found, ALLOWS, 1, ClusterView()).kind == "unknown"


def test_two_policies_whose_joined_names_are_equal_are_both_candidates() -> None:
    found = rules(OLD, comments=False)
    one = owner(found, ALLOWS, 1, cluster(ALLOW, policy("shopallow/-web")))
    assert not one.known and "candidates NetworkPolicy shop/allow-web or NetworkPolicy shopallow/-web" in one.text


def test_an_accepted_packet_names_the_policy_that_allowed_it() -> None:
    found = rules(OLD)
    path = [("KUBE-ROUTER-FORWARD", 1), (FW, 3), (ALLOWS, 2)]

    def hit(*places: tuple[str, int]) -> RuleHit:
        rule = found.chain("ip", "filter", places[-1][0])[places[-1][1] - 1]
        return RuleHit(tuple(RuleLocation(*p) for p in places), rule, rule.target, Evidence.OBSERVED)

    hits = [hit(*path), hit(("KUBE-ROUTER-FORWARD", 1), (FW, 5)), hit(("KUBE-ROUTER-FORWARD", 2))]
    last = MarkTracker(cluster(WEB, ALLOW, DENY)).table(hits, found)[-1]
    assert last and last.text == (
        "kube-router, chain KUBE-ROUTER-FORWARD (allowed by NetworkPolicy shop/allow-web, ingress rule 2 (kube-router))"
    )
    last = MarkTracker(cluster(WEB, ALLOW, DENY)).table(hits[1:], found)[-1]
    assert last and last.cause == "", "no policy has marked this packet"
