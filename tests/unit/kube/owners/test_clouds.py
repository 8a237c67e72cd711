# SPDX-License-Identifier: Apache-2.0
"""Amazon VPC CNI, Azure CNI and NPM, ip-masq-agent: programs of clouds, in the form in which they write rules."""

from __future__ import annotations

import pytest

from tests.support.owned_rules import nft_owner, others, owners_of

AWS = """*nat
-A PREROUTING -i eni+ -m comment --comment "AWS, outbound connections" -j AWS-CONNMARK-CHAIN-0
-A PREROUTING -m comment --comment "AWS, CONNMARK" -j CONNMARK --restore-mark --nfmask 0x80 --ctmask 0x80
-A POSTROUTING -m comment --comment "AWS SNAT CHAIN" -j AWS-SNAT-CHAIN-0
-A AWS-SNAT-CHAIN-0 -d 10.0.0.0/16 -m comment --comment "AWS SNAT CHAIN" -j RETURN
-A AWS-SNAT-CHAIN-0 ! -o vlan+ -m comment --comment "AWS, SNAT" -m addrtype ! --dst-type LOCAL -j SNAT --to-source 10.0.3.4
-A AWS-CONNMARK-CHAIN-12 -m comment --comment "AWS, CONNMARK" -j CONNMARK --set-xmark 0x80/0x80
*mangle
-A PREROUTING -i eth0 -m comment --comment "AWS, primary ENI" -m addrtype --dst-type LOCAL -j CONNMARK --set-xmark 0x80/0x80
-A PREROUTING -i eni+ -m comment --comment "AWS, primary ENI" -j CONNMARK --restore-mark --nfmask 0x80 --ctmask 0x80
"""

AZURE_CNI = """*filter
-A INPUT -j AZURECNIINPUT
-A OUTPUT -j AZURECNIOUTPUT
-A AZURECNIINPUT -s 169.254.0.4/32 -p tcp -m tcp --dport 80 -j ACCEPT
*nat
-A POSTROUTING -j SWIFT-POSTROUTING
-A SWIFT-POSTROUTING -s 10.241.0.0/16 -d 168.63.129.16/32 -p udp -m udp --dport 53 -j SNAT --to-source 10.240.0.4
"""

AZURE_NPM = """*filter
-A FORWARD -m conntrack --ctstate NEW -j AZURE-NPM
-A AZURE-NPM -j AZURE-NPM-INGRESS
-A AZURE-NPM-INGRESS -m set --match-set azure-npm-2173871756 dst -j AZURE-NPM-INGRESS-2776012876
-A AZURE-NPM-INGRESS -m mark --mark 0x400/0x400 -j DROP
-A AZURE-NPM-INGRESS-2776012876 -j MARK --set-xmark 0x400/0x400
-A AZURE-NPM-INGRESS-ALLOW-MARK -j AZURE-NPM-EGRESS
-A AZURE-NPM-ACCEPT -j ACCEPT
"""

MASQ_AGENT = """*nat
-A POSTROUTING -m comment --comment "ip-masq-agent: ensure nat POSTROUTING directs all non-LOCAL destination traffic to our \
custom IP-MASQ-AGENT chain" -m addrtype ! --dst-type LOCAL -j IP-MASQ-AGENT
-A POSTROUTING -m comment --comment "\\"ip-masq-agent: ensure nat POSTROUTING directs to our IP-MASQ chain\\"" -j IP-MASQ
-A IP-MASQ-AGENT -d 10.0.0.0/8 -m comment --comment "ip-masq-agent: local traffic is not subject to MASQUERADE" -j RETURN
-A IP-MASQ-AGENT -j MASQUERADE --random-fully
-A SHOP -m comment --comment "ip-masq-agent: outbound traffic is subject to MASQUERADE (must be last in chain)" -j MASQUERADE
"""


@pytest.mark.parametrize(
    ("saved", "program"),
    [(AWS, "Amazon VPC CNI"), (AZURE_CNI, "Azure CNI"), (AZURE_NPM, "Azure NPM"), (MASQ_AGENT, "ip-masq-agent")],
)
def test_every_rule_is_of_the_program(saved: str, program: str) -> None:
    assert others(saved, program) == []
    assert len(owners_of(saved)) == saved.count("\n-A ")


def test_the_nftables_back_end_of_the_amazon_vpc_cni() -> None:
    text = "ct mark & 0x00000080 meta mark set ct mark & 0x00000080"
    assert nft_owner("aws-cni", "nat-prerouting", text) == "Amazon VPC CNI, table aws-cni"


@pytest.mark.parametrize(
    "chain",
    ["AWS-SNAT-CHAIN-MINE", "AWS-SNAT", "AZURECNISHOP", "AZURE-NPM-SHOP", "SWIFT", "IP-MASQUERADE-LAN", "IP-MASQ-AGENT-2"],
)
def test_a_name_that_only_begins_alike_is_the_administrators(chain: str) -> None:
    rules = f"*nat\n-A POSTROUTING -j {chain}\n-A {chain} -j MASQUERADE\n"
    assert owners_of(rules) == [("POSTROUTING", "the administrator"), (chain, "the administrator")]


def test_a_comment_of_ones_own_names_no_cloud() -> None:
    assert owners_of('*nat\n-A PREROUTING -m comment --comment "AWS, my own rule" -j MARK --set-xmark 0x1/0x1\n') == [
        ("PREROUTING", "the administrator")
    ]


def test_the_chain_that_two_programs_write() -> None:
    """IP-MASQ: the script of a Google node makes it, and the agent there uses the same one."""
    rules = """*nat
-A IP-MASQ -d 169.254.0.0/16 -m comment --comment "ip-masq: local traffic is not subject to MASQUERADE" -j RETURN
-A IP-MASQ -d 10.0.0.0/8 -m comment --comment "ip-masq-agent: local traffic is not subject to MASQUERADE" -j RETURN
-A IP-MASQ -d 10.8.0.0/16 -j RETURN
"""
    assert [text for _, text in owners_of(rules)] == [
        "setup of a Google node, chain IP-MASQ",
        "ip-masq-agent, chain IP-MASQ",
        "unknown",
    ]
