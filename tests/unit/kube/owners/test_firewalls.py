# SPDX-License-Identifier: Apache-2.0
"""libvirt, ufw, firewalld and Docker: programs of a node beside Kubernetes, in the form in which they write rules."""

from __future__ import annotations

import pytest

from tests.support.owned_rules import nft_owner, others, owners_of

LIBVIRT = """*nat
-A POSTROUTING -j LIBVIRT_PRT
-A LIBVIRT_PRT -s 192.168.122.0/24 -d 224.0.0.0/24 -j RETURN
-A LIBVIRT_PRT -s 192.168.122.0/24 ! -d 192.168.122.0/24 -p tcp -j MASQUERADE --to-ports 1024-65535
*filter
-A INPUT -j LIBVIRT_INP
-A FORWARD -j LIBVIRT_FWX
-A FORWARD -j LIBVIRT_FWI
-A FORWARD -j LIBVIRT_FWO
-A OUTPUT -j LIBVIRT_OUT
-A LIBVIRT_INP -i virbr0 -p udp -m udp --dport 53 -j ACCEPT
-A LIBVIRT_FWI -d 192.168.122.0/24 -o virbr0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A LIBVIRT_FWI -o virbr0 -j REJECT --reject-with icmp-port-unreachable
-A LIBVIRT_FWO -s 192.168.122.0/24 -i virbr0 -j ACCEPT
-A LIBVIRT_FWX -i virbr0 -o virbr0 -j ACCEPT
-A FORWARD -j libvirt-in
"""

UFW = """*filter
-A INPUT -j ufw-before-logging-input
-A INPUT -j ufw-before-input
-A INPUT -j ufw-reject-input
-A INPUT -j ufw-track-input
-A ufw-before-input -i lo -j ACCEPT
-A ufw-before-input -j ufw-not-local
-A ufw-before-input -j ufw-user-input
-A ufw-after-input -p udp -m udp --dport 137 -j ufw-skip-to-policy-input
-A ufw-skip-to-policy-input -j DROP
-A ufw-user-input -p tcp -m tcp --dport 22 -j ACCEPT
-A ufw-user-limit -j REJECT --reject-with icmp-port-unreachable
-A ufw-user-limit-accept -j ACCEPT
-A ufw-logging-deny -m limit --limit 3/min --limit-burst 10 -j LOG --log-prefix "[UFW BLOCK] "
-A ufw6-user-forward -j RETURN
"""

FIREWALLD = """*filter
-A INPUT -j INPUT_direct
-A INPUT -j INPUT_ZONES_SOURCE
-A INPUT -j INPUT_ZONES
-A INPUT_ZONES -i eth0 -g IN_public
-A IN_public -j IN_public_allow
-A IN_public_allow -p tcp -m tcp --dport 22 -j ACCEPT
-A FORWARD_IN_ZONES -i eth0 -g FWDI_public
-A FWDI_public -p icmp -j ACCEPT
"""

DOCKER = """*nat
-A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER
-A POSTROUTING -s 172.17.0.0/16 ! -o docker0 -j MASQUERADE
-A DOCKER ! -i docker0 -p tcp -m tcp --dport 8080 -j DNAT --to-destination 172.17.0.2:80
*filter
-A FORWARD -j DOCKER-USER
-A FORWARD -j DOCKER-FORWARD
-A DOCKER ! -i docker0 -o docker0 -j DROP
-A DOCKER-BRIDGE -o docker0 -j DOCKER
-A DOCKER-CT -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A DOCKER-FORWARD -j DOCKER-CT
-A DOCKER-FORWARD -j DOCKER-INTERNAL
-A DOCKER-INTERNAL ! -s 172.18.0.0/16 -o br-0123456789ab -j DROP
-A DOCKER-ISOLATION-STAGE-1 -i docker0 ! -o docker0 -j DOCKER-ISOLATION-STAGE-2
-A DOCKER-ISOLATION-STAGE-2 -o docker0 -j DROP
-A DOCKER-INGRESS -j RETURN
"""


@pytest.mark.parametrize(
    ("saved", "program"), [(LIBVIRT, "libvirt"), (UFW, "ufw"), (FIREWALLD, "firewalld"), (DOCKER, "Docker")]
)
def test_every_rule_is_of_the_program(saved: str, program: str) -> None:
    assert others(saved, program) == []
    assert len(owners_of(saved)) == saved.count("\n-A ")


@pytest.mark.parametrize(
    ("table", "named"),
    [
        ("libvirt_network", "libvirt, table libvirt_network"),
        ("firewalld", "firewalld, table firewalld"),
        ("firewalld_policy_drop", "firewalld, table firewalld_policy_drop"),
        ("docker-bridges", "Docker, table docker-bridges"),
        ("libvirt_network_mine", "the administrator"),
        ("firewalld2", "the administrator"),
        ("docker-bridges-mine", "the administrator"),
    ],
)
def test_tables_of_nftables(table: str, named: str) -> None:
    assert nft_owner(table, "forward", "ct state invalid drop") == named


@pytest.mark.parametrize(
    "chain",
    ["LIBVIRT_SHOP", "libvirt-shop", "ufw-docker-logging-deny", "ufw-user-shop", "DOCKER-SHOP", "DOCKERS", "INPUT_ZONES2"],
)
def test_a_name_that_only_begins_alike_is_the_administrators(chain: str) -> None:
    rules = f"*filter\n-A FORWARD -j {chain}\n-A {chain} -j DROP\n"
    assert owners_of(rules) == [("FORWARD", "the administrator"), (chain, "the administrator")]


def test_direct_rules_of_firewalld_are_the_administrators() -> None:
    assert owners_of("*filter\n-A INPUT_direct -s 203.0.113.7/32 -j DROP\n") == [
        ("INPUT_direct", "the administrator, INPUT_direct")
    ]


def test_a_chain_of_a_zone_without_firewalld_is_the_administrators() -> None:
    """IN_public is a name that anyone can give."""
    rules = "*filter\n-A INPUT -i eth0 -j IN_public\n-A IN_public -p tcp -m tcp --dport 22 -j ACCEPT\n"
    assert {text for _, text in owners_of(rules)} == {"the administrator"}
