# SPDX-License-Identifier: Apache-2.0
"""The owner of each rule of random policies, as Calico and kube-router write them; `make policies` does it with packets."""

from __future__ import annotations

import sys
from pathlib import Path
from random import Random

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[4] / "vagrant"))

from tests.kernel.policies import random_sets
from tests.support.policies import cluster
from tests.support.policy_semantics import name_of
from tests.support.policy_writers import calico_policies, calico_tables, kube_router_tables
from tracer.kube.owners import owner_of
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
