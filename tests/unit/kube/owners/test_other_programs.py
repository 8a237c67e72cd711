# SPDX-License-Identifier: Apache-2.0
"""Programs that are known only by the names of their chains, tables and comments."""

from __future__ import annotations

import pytest

from tests.unit.kube.owners.test_owners import owner


@pytest.mark.parametrize(
    ("table", "rule", "program"),
    [
        ("filter", "-A f2b-sshd -s 203.0.113.7/32 -j REJECT --reject-with icmp-port-unreachable", "fail2ban"),
        ("filter", "-A INPUT -p tcp -m multiport --dports 22 -j f2b-sshd", "fail2ban"),
        ("nat", "-A OVN-POSTROUTING -m set --match-set ovn40subnets src -j MASQUERADE", "Kube-OVN"),
        ("nat", "-A OVN-NAT-PSUBNET-aaaabbbb -j MASQUERADE", "Kube-OVN"),
        ("nat", "-A OVN-KUBE-NODEPORT -p tcp -m addrtype --dst-type LOCAL -m tcp --dport 31787 -j DNAT --to-destination "
         "169.254.169.3:31787", "OVN-Kubernetes"),
        ("nat", "-A PREROUTING -j OVN-KUBE-ETP", "OVN-Kubernetes"),
        ("nat", "-A ts-postrouting -m mark --mark 0x40000/0xff0000 -j MASQUERADE", "Tailscale"),
        ("filter", "-A FORWARD -j ts-forward", "Tailscale"),
        ("nat", "-A WEAVE -s 10.32.0.0/12 -d 224.0.0.0/4 -j RETURN", "Weave Net"),
        ("filter", "-A WEAVE-NPC-DEFAULT -j ACCEPT", "Weave Net"),
        ("raw", '-A OUTPUT -s 169.254.20.10/32 -p udp -m comment --comment "NodeLocal DNS Cache: skip conntrack" -j NOTRACK',
         "NodeLocal DNSCache"),
    ],
)  # fmt: skip
def test_a_program_by_its_names(table: str, rule: str, program: str) -> None:
    found = owner(rule, table)
    assert (found.kind, found.program) == ("program", program)


@pytest.mark.parametrize("chain", ["OVN-SHOP", "ts-shop", "WEAVER", "MY-f2b-chain"])
def test_a_name_that_only_begins_alike_is_another_program(chain: str) -> None:
    assert owner(f"-A {chain} -p tcp -j DROP", "filter").program == ""
