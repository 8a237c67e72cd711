# SPDX-License-Identifier: Apache-2.0
"""Policies of other APIs in a file of objects: they are counted, and not taken for NetworkPolicies of Kubernetes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.policies import policy
from tracer.kube import objects
from tracer.kube.owner_resolver import ObjectSource, OwnerResolver
from tracer.kube.selectors import Selectors
from tracer.model.filter import Filter


def of(group: str, kind: str = "NetworkPolicy", name: str = "deny-all") -> dict[str, Any]:
    return {"apiVersion": group, "kind": kind, "metadata": {"namespace": "shop", "name": name}, "spec": {"selector": "all()"}}


def resolver(tmp_path: Path, body: dict[str, Any]) -> OwnerResolver:
    file = tmp_path / "objects.json"
    file.write_text(json.dumps(body))
    return OwnerResolver(ObjectSource(str(file)), Selectors(), Filter())


@pytest.mark.parametrize("group", ["projectcalico.org/v3", "crd.projectcalico.org/v1", "crd.antrea.io/v1beta1"])
@pytest.mark.parametrize("is_typed_list", [False, True])
def test_a_network_policy_of_another_api(tmp_path: Path, group: str, is_typed_list: bool) -> None:
    """Without its podSelector it would select every pod, and deny everything."""
    own = {**policy("shop/web"), "apiVersion": "networking.k8s.io/v1"}
    body: dict[str, Any] = {"kind": "List", "items": [own, of(group)]}
    if is_typed_list:
        other = of(group)
        del other["apiVersion"], other["kind"]
        body["items"][1] = {"apiVersion": group, "kind": "NetworkPolicyList", "items": [other]}
    found = resolver(tmp_path, body)
    assert [p.name for p in found.cluster.store.policies_of.all("shop")] == ["web"]
    assert found.notes() == ["Not evaluated: 1 NetworkPolicy of another API. Which packets it allows is not known."]


def test_policies_are_counted_by_kind(tmp_path: Path) -> None:
    cilium = [of("cilium.io/v2", "CiliumNetworkPolicy", f"p{n}") for n in range(3)]
    more = [of("cilium.io/v2", "CiliumClusterwideNetworkPolicy"), of("x/v1", "\x1b[31mNetworkPolicy"), policy("shop/web")]
    found = resolver(tmp_path, {"kind": "List", "items": [*cilium, *more]})
    assert found.notes() == [
        "Not evaluated: 3 CiliumNetworkPolicy, 1 CiliumClusterwideNetworkPolicy. Which packets they allow is not known."
    ]


@pytest.mark.parametrize("group", ["networking.k8s.io/v1", "extensions/v1beta1", "v1", ""])
def test_the_groups_of_kubernetes(group: str) -> None:
    assert not objects.is_other_policy(of(group))


def test_without_other_policies_nothing_is_noted(tmp_path: Path) -> None:
    assert resolver(tmp_path, {"kind": "List", "items": [policy("shop/web")]}).notes() == []
