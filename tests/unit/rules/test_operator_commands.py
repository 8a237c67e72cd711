# SPDX-License-Identifier: Apache-2.0
"""The commands printed for a rule belong to the rule's back end."""

from __future__ import annotations

import pytest

from tracer.model.rule import Rule
from tracer.rules import operator_commands

LEGACY = Rule("ip", "nat", "POSTROUTING", 5, "-d 10.244.3.0/24 -j RETURN")
LEGACY6 = Rule("ip6", "nat", "POSTROUTING", 5, "! -s fd00::/16 -j RETURN")
WITHOUT_TEXT = Rule("ip", "nat", "POSTROUTING", 5, "")
BY_IPTABLES = Rule("ip", "nat", "POSTROUTING", 5, "-d 10.244.3.0/24 -j RETURN", handle=17)
BY_NFT = Rule("ip", "nat", "POSTROUTING", 5, "ip daddr 10.244.3.0/24 return", handle=17)
KUBE = Rule("ip6", "kube-proxy", "services", 2, "jump x", handle=9)


@pytest.mark.parametrize(
    ("rule", "shown", "deleted", "deleted_by_position"),
    [
        (LEGACY, "iptables-legacy -t nat -L POSTROUTING -v -n --line-numbers",
         "iptables-legacy -t nat -D POSTROUTING -d 10.244.3.0/24 -j RETURN", "iptables-legacy -t nat -D POSTROUTING 5"),
        (LEGACY6, "ip6tables-legacy -t nat -L POSTROUTING -v -n --line-numbers",
         "ip6tables-legacy -t nat -D POSTROUTING ! -s fd00::/16 -j RETURN", "ip6tables-legacy -t nat -D POSTROUTING 5"),
        (WITHOUT_TEXT, "iptables-legacy -t nat -L POSTROUTING -v -n --line-numbers",
         "iptables-legacy -t nat -D POSTROUTING 5", "iptables-legacy -t nat -D POSTROUTING 5"),
        (BY_IPTABLES, "iptables-nft -t nat -L POSTROUTING -v -n --line-numbers",
         "iptables-nft -t nat -D POSTROUTING -d 10.244.3.0/24 -j RETURN", "nft delete rule ip nat POSTROUTING handle 17"),
        (BY_NFT, "nft -a list chain ip nat POSTROUTING",
         "nft delete rule ip nat POSTROUTING handle 17", "nft delete rule ip nat POSTROUTING handle 17"),
        (KUBE, "nft -a list chain ip6 kube-proxy services",
         "nft delete rule ip6 kube-proxy services handle 9", "nft delete rule ip6 kube-proxy services handle 9"),
    ],
    ids=["legacy", "IPv6", "without text", "iptables-nft", "nft in iptables' table", "nftables"],
)  # fmt: skip
def test_a_rule(rule: Rule, shown: str, deleted: str, deleted_by_position: str) -> None:
    assert (operator_commands.shows(rule), operator_commands.deletes(rule), operator_commands.deletes_by_position(rule)) == (
        shown,
        deleted,
        deleted_by_position,
    )


def test_a_policy() -> None:
    assert (
        operator_commands.shows_policy("ip", "filter", "FORWARD", legacy=True)
        == "iptables-legacy -t filter -S FORWARD | head -1"
    )
    assert (
        operator_commands.shows_policy("ip6", "filter", "INPUT", legacy=False) == "ip6tables-nft -t filter -S INPUT | head -1"
    )
    of_kernel = operator_commands.shows_policy("ip", "ip filter", "FORWARD", legacy=False)
    assert of_kernel == "iptables-nft -t filter -S FORWARD | head -1", "a hop of nftables names the family, too"
    guard = operator_commands.shows_policy("ip", "inet guard", "in", legacy=False)
    assert guard == "nft list chain inet guard in | grep -A1 'chain in '"
    assert operator_commands.shows_policy("ip", "firewalld", "in", legacy=False) == "nft list ruleset | grep -A1 'chain in '"
