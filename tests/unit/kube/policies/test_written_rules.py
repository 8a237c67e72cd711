# SPDX-License-Identifier: Apache-2.0
"""The owner of each rule of random policies, as Calico and kube-router write them; `make policies` does it with packets."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from random import Random

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[4] / "vagrant"))

from tests.kernel.policies import random_sets
from tests.support.policies import cluster
from tests.support.policy_semantics import address_of, name_of
from tests.support.policy_writers import calico_policies, calico_tables, kube_router_nftables, kube_router_tables
from tracer.kube.owners import denial_of, owner_of, policy_mark
from tracer.model.rule import ChainKey, Rule, Ruleset
from tracer.rules import save_parser


@pytest.mark.parametrize("form", calico_policies.FORMS)
@pytest.mark.parametrize("seed", range(6))
def test_calico(seed: int, form: str) -> None:
    world = random_sets.world(Random(seed), "calico")
    rules = save_parser.parse(calico_tables.steps(world, "legacy", form)[1][1])
    view, checked = cluster(*world.objects), 0
    for policy in world.policies:
        for way in ("ingress", "egress"):
            chain = calico_policies.policy_chain(name_of(policy), way, form, 28)
            for rule in rules.chain("ip", "filter", chain):
                owner = owner_of(rule, rules, view)
                assert (owner.kind, owner.label) == ("NetworkPolicy", name_of(policy)), owner
                assert owner.detail.startswith(way)
                assert " rule " in owner.detail or not rule.target, (form, rule, owner)
                checked += 1
    assert checked


@pytest.mark.parametrize("form", ["old", "new"])
@pytest.mark.parametrize("seed", range(6))
def test_kube_router(seed: int, form: str) -> None:
    world = random_sets.world(Random(seed), "kube-router")
    rules = save_parser.parse(kube_router_tables.steps(world, "legacy", form)[1][1])
    view, names = cluster(*world.objects), {name_of(policy) for policy in world.policies}
    owners = [
        owner_of(rule, rules, view)
        for (_, _, chain), of in rules.chains.items()
        for rule in of
        if chain.startswith("KUBE-NWPLCY-") and chain not in ("KUBE-NWPLCY-DEFAULT", "KUBE-NWPLCY-COMMON")
    ]
    assert all(owner.kind == "NetworkPolicy" and owner.label in names for owner in owners)
    assert all(owner.detail.startswith(("ingress", "egress")) for owner in owners)


def native(text: str) -> Ruleset:
    """The rules of a table in nft's language, one a line."""
    chains: dict[ChainKey, tuple[Rule, ...]] = {}
    for found in re.finditer(r"^\tchain (\S+) \{\n(.*?)^\t\}", text, re.M | re.S):
        key, lines = ("ip", "kube-router-filter-ipv4", found[1]), [line.strip() for line in found[2].splitlines()]
        rules = [line for line in lines if " comment " in line]
        targets = [re.search(r"(?:jump (\S+)|(reject|accept|return|drop)) comment", line) for line in rules]
        words = [(each[1] or each[2].upper()) if each else "" for each in targets]
        comments = [line.rpartition(' comment "')[2].rstrip('"') for line in rules]
        made = zip(rules, comments, words, strict=True)
        chains[key] = tuple(Rule(*key, n, line, said, to, n) for n, (line, said, to) in enumerate(made, 1))
    return Ruleset("nft", 0, "1", chains)


@pytest.mark.parametrize("seed", range(6))
def test_kube_router_with_nftables(seed: int) -> None:
    world = random_sets.world(Random(seed), "kube-router")
    rules = native(kube_router_nftables.steps(world)[0][1])
    view, names = cluster(*world.objects), {name_of(policy) for policy in world.policies}
    no_policies = ("KUBE-NWPLCY-DEFAULT", "KUBE-NWPLCY-COMMON")
    of_policies = [r for key, of in rules.chains.items() for r in of if key[2].startswith("KUBE-NWPLCY-")]
    of_policies = [rule for rule in of_policies if rule.chain not in no_policies]
    for rule in of_policies:
        owner = owner_of(rule, rules, view)
        assert owner.kind == "NetworkPolicy" and owner.label in names, (rule, owner)
        assert owner.detail.startswith(("ingress", "egress", "direction not known")), (rule, owner)
        is_accepting = " set meta mark or 0x10000" in rule.text
        assert bool(policy_mark(rule, rules, owner, 0x10000)) == is_accepting, "an exception and a jump accept nothing"
    denials = [denial_of(r, rules, view) for key, of in rules.chains.items() for r in of if r.target == "REJECT"]
    assert {f"{denial.pod[0]}/{denial.pod[1]}" for denial in denials if denial} == {name_of(pod) for pod in world.local}
    for denial in denials:
        assert denial and denial.address in {address_of(pod) for pod in world.local if name_of(pod) == "/".join(denial.pod)}
        assert all(one.candidates and one.candidates[0].text for one in denial.policies)


def test_the_names_of_a_pod_and_a_policy_before_the_short_comments() -> None:
    """The first version with nftables: the comment of the refusing rule has no namespace, that of the jump to its chain has."""
    table, pod_chain, policy_chain = "kube-router-filter-ipv4", "KUBE-POD-FW-A", "KUBE-NWPLCY-B"
    top = Rule(
        "ip", table, "KUBE-ROUTER-FORWARD", 1, f"ip daddr 10.0.0.1 counter jump {pod_chain}",
        f"jump traffic to POD name:web ns: shop to chain {pod_chain}", pod_chain, 1,
    )  # fmt: skip
    jump = Rule(
        "ip",
        table,
        pod_chain,
        1,
        f"ip daddr 10.0.0.1 counter jump {policy_chain}",
        "run through nw policy deny",
        policy_chain,
        2,
    )
    said = "REJECT traffic destined for POD name:web"
    refused = Rule("ip", table, pod_chain, 2, "meta mark & 0x00010000 == 0x00000000 counter reject", said, "REJECT", 3)
    rules = Ruleset("nft", 0, "1", {("ip", table, top.chain): (top,), ("ip", table, pod_chain): (jump, refused)})
    owner = owner_of(refused, rules, cluster())
    assert owner.text == "NetworkPolicy shop/deny, policies of pod shop/web, nothing in it allows it (kube-router)"
    assert owner_of(top, rules, cluster()).text == "pod shop/web, chain KUBE-ROUTER-FORWARD (kube-router)"
