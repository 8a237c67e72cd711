# SPDX-License-Identifier: Apache-2.0
"""Cilium's rules for its proxies, for masquerading and against tracking; written from pkg/datapath/iptables/iptables.go."""

from __future__ import annotations

import pytest

from tests.support.owned_rules import nft_owner, others, owners_of

CHAINS = {
    "raw": ("PRE_raw", "OUTPUT_raw"),
    "mangle": ("PRE_mangle", "POST_mangle"),
    "nat": ("PRE_nat", "OUTPUT_nat", "POST_nat"),
    "filter": ("INPUT", "OUTPUT", "FORWARD"),
}
HOOKS = {"PRE": "PREROUTING", "POST": "POSTROUTING"}
RULES = {
    "raw": """-A CILIUM_PRE_raw -m mark --mark 0x200/0xf00 -m comment --comment "cilium: NOTRACK for proxy traffic" -j CT \
--notrack
-A CILIUM_OUTPUT_raw -o lxc+ -m mark --mark 0xa00/0xe00 -m comment --comment "cilium: NOTRACK for proxy return traffic" -j CT \
--notrack
""",
    "mangle": """-A CILIUM_PRE_mangle ! -o lo -m socket --transparent -m mark ! --mark 0xe00/0xf00 -m comment --comment \
"cilium: any->pod redirect proxied traffic to host proxy" -j MARK --set-xmark 0x200/0xffffffff
-A CILIUM_PRE_mangle -p tcp -m mark --mark 0x3a8f0200 -m comment --comment "cilium: TPROXY to host cilium-dns-egress proxy" -j \
TPROXY --on-port 36666 --on-ip 127.0.0.1 --tproxy-mark 0x200/0xffffffff
""",
    "nat": """-A CILIUM_POST_nat -s 10.0.0.0/24 ! -d 10.0.0.0/8 ! -o cilium_+ -m comment --comment \
"cilium masquerade non-cluster" -j MASQUERADE
""",
    "filter": """-A CILIUM_FORWARD -o cilium_host -m comment --comment "cilium: any->cluster on cilium_host forward accept" \
-j ACCEPT
-A CILIUM_INPUT -m mark --mark 0x200/0xf00 -m comment --comment "cilium: ACCEPT for proxy traffic" -j ACCEPT
""",
}


def saved(old: str = "") -> str:
    tables = []
    for table, chains in CHAINS.items():
        feeders = [
            f'-A {HOOKS.get(chain.split("_")[0], chain.split("_")[0])} -m comment --comment "cilium-feeder: CILIUM_{chain}" -j'
            f" {old}CILIUM_{chain}"
            for chain in chains
        ]
        tables.append("\n".join([f"*{table}", *feeders, RULES[table].replace("-A CILIUM_", f"-A {old}CILIUM_")]))
    return "\n".join(tables)


@pytest.mark.parametrize("old", ["", "OLD_"])
def test_every_rule_is_ciliums(old: str) -> None:
    text = saved(old)
    assert others(text, "Cilium") == [] and len(owners_of(text)) == text.count("\n-A ") == 17


@pytest.mark.parametrize("chain", ["CILIUM_TRANSIENT_FORWARD", "CILIUM_POST"])
def test_other_chains(chain: str) -> None:
    assert owners_of(f"*filter\n-A {chain} -j ACCEPT\n") == [(chain, f"Cilium, chain {chain}")]


@pytest.mark.parametrize(
    "rule",
    [
        "-A CILIUM_SHOP -j ACCEPT",
        "-A MY_CILIUM_INPUT -j ACCEPT",
        '-A SHOP -m comment --comment "cilium: ours" -j DROP',
        '-A FORWARD -m comment --comment "cilium host" -j DROP',
    ],
)
def test_what_only_looks_alike_is_the_administrators(rule: str) -> None:
    ((_, text),) = owners_of(f"*filter\n{rule}\n")
    assert text == "the administrator"


def test_a_table_of_nftables() -> None:
    assert nft_owner("cilium", "forward", "accept") == "Cilium, table cilium"
    assert "Cilium" not in nft_owner("cilium-shop", "forward", "accept")
