# SPDX-License-Identifier: Apache-2.0
"""Names of Calico's chains and interfaces. The hashes are those of Calico's own tests and of Python's hashlib."""

from __future__ import annotations

import hashlib

import pytest

from tracer.kube.policies import calico_names as names
from tracer.model.policy import PolicyName


def test_the_hash_is_that_of_calicos_own_tests() -> None:
    """felix/rules/policy_test.go: the chain cali-pi-_PymyFHQQg3808jiz1OJ of a GlobalNetworkPolicy."""
    assert names.limited("gnp/long-policy-name-that-gets-hashed", 28) == "_PymyFHQQg3808jiz1OJ"


@pytest.mark.parametrize(
    ("identifier", "name"),
    [
        ("knp/shop/web", "knp/shop/web"),
        ("x" * 20, "x" * 20),
        ("_" + "x" * 18, "_" + "x" * 18),
    ],
)
def test_a_short_name_is_kept(identifier: str, name: str) -> None:
    assert names.limited(identifier, 28) == name


@pytest.mark.parametrize("identifier", ["x" * 21, "_" + "x" * 19])
def test_a_name_that_could_be_confused_with_a_hash_is_hashed(identifier: str) -> None:
    found = names.limited(identifier, 28)
    assert found.startswith("_") and len(found) == 20 and found != identifier


def test_all_forms_of_a_policy() -> None:
    found = names.chains_of("shop", "web")
    assert "knp/shop/web" in found
    assert {"shop/knp.default.web", "default/shop/knp.default.web"} <= set(found), "nftables does not shorten them"
    assert len([name for name in found if name.startswith("_")]) == 1, "iptables shortens the form with a tier"


@pytest.mark.parametrize(
    ("identifier", "found"),
    [
        ("knp/shop/web", [("NetworkPolicy", "shop", "web")]),
        ("np/shop/default.web", [("CalicoNetworkPolicy", "shop", "default.web")]),
        ("gnp/block", [("GlobalNetworkPolicy", "", "block")]),
        ("shop/knp.default.web", [("NetworkPolicy", "shop", "web")]),
        ("default/shop/knp.default.web", [("NetworkPolicy", "shop", "web")]),
        (
            "security/security.block",
            [("GlobalNetworkPolicy", "", "security.block"), ("CalicoNetworkPolicy", "security", "security.block")],
        ),
        ("_N6juwc4ZaH0TL-KQUdy", []),
        ("shop/web", []),
        ("allow-all", []),
        ("", []),
    ],
)
def test_plain_names(identifier: str, found: list[tuple[str, str, str]]) -> None:
    assert names.by_plain_name(identifier) == tuple(PolicyName(*each, "chain name") for each in found)


@pytest.mark.parametrize(
    ("comment", "identifier", "label"),
    [
        ("Policy shop/knp.default.web ingress", "shop/knp.default.web", "shop/web"),
        ("Policy shop/knp.default.web egress", "default/shop/knp.default.web", "shop/web"),
        ("KubernetesNetworkPolicy shop/web ingress", "knp/shop/web", "shop/web"),
        ("GlobalNetworkPolicy block ingress", "gnp/block", "block"),
        ("Policy security.block ingress", "security/security.block", "security.block"),
    ],
)
def test_a_comment_counts_if_the_hash_fits(comment: str, identifier: str, label: str) -> None:
    for limit in (28, 256):
        found = names.by_comment(comment, names.limited(identifier, limit))
        assert found and found.label == label
    assert names.by_comment(comment, names.limited(identifier + "x", 28)) is None
    assert names.by_comment("a comment", names.limited(identifier, 28)) is None


def test_the_interface_of_a_pod() -> None:
    assert names.interface_hash("shop", "web-1") == hashlib.sha1(b"shop.web-1").hexdigest()[:11]
