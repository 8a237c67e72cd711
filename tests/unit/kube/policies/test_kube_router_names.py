# SPDX-License-Identifier: Apache-2.0
"""Names of kube-router's ipsets."""

from __future__ import annotations

import base64
import hashlib

import pytest

from tracer.kube.policies import kube_router_names as names


def by_hand(text: str) -> str:
    return base64.b32encode(hashlib.sha256(text.encode()).digest())[:16].decode()


def test_the_pods_of_a_policy() -> None:
    assert names.target_hashes("shop", "web") == tuple(map(by_hand, ("shopweb", "shopwebIPv4", "shopwebIPv6")))
    assert names.target_hashes("shop", "web") == names.target_hashes("sho", "pweb"), "the names are only joined"


@pytest.mark.parametrize("end", ["pod", "IPv4pod", "IPv6ipblock", "3IPv4namedport", "0namedport"])
def test_the_rule_of_a_set(end: str) -> None:
    found = by_hand(f"shopwebingressrule2{end}")
    assert names.rule_of_set(found, "shop", "web", "ingress", 3) == 3
    assert names.rule_of_set(found, "shop", "web", "ingress", 2) == 0
    assert names.rule_of_set(found, "shop", "web", "egress", 3) == 0
