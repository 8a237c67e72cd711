# SPDX-License-Identifier: Apache-2.0
"""Istio, Linkerd and Consul: rules in the network namespaces of pods, in the form in which they are written."""

from __future__ import annotations

import pytest

from tests.support.owned_rules import nft_owner, others, owners_of

SIDECAR = """*nat
-A PREROUTING -p tcp -j ISTIO_INBOUND
-A OUTPUT -j ISTIO_OUTPUT
-A ISTIO_INBOUND -p tcp -m tcp --dport 15008 -j RETURN
-A ISTIO_INBOUND -p tcp -j ISTIO_IN_REDIRECT
-A ISTIO_IN_REDIRECT -p tcp -j REDIRECT --to-ports 15006
-A ISTIO_OUTPUT -s 127.0.0.6/32 -o lo -j RETURN
-A ISTIO_OUTPUT -m owner --uid-owner 1337 -j RETURN
-A ISTIO_OUTPUT -d 127.0.0.1/32 -j RETURN
-A ISTIO_OUTPUT -j ISTIO_REDIRECT
-A ISTIO_REDIRECT -p tcp -j REDIRECT --to-ports 15001
*raw
-A PREROUTING -j ISTIO_DROP
"""

AMBIENT = """*mangle
-A PREROUTING -j ISTIO_PRERT
-A OUTPUT -j ISTIO_OUTPUT
-A ISTIO_PRERT -m mark --mark 0x539/0xfff -j CONNMARK --set-xmark 0x111/0xfff
-A ISTIO_OUTPUT -m connmark --mark 0x111/0xfff -j CONNMARK --restore-mark --nfmask 0xffffffff --ctmask 0xffffffff
*nat
-A ISTIO_PRERT ! -d 127.0.0.1/32 -p tcp -m tcp ! --dport 15008 -m mark ! --mark 0x539/0xfff -j REDIRECT --to-ports 15006
-A POSTROUTING -j ISTIO_POSTRT
-A ISTIO_POSTRT -p tcp -m owner --socket-exists -m set --match-set istio-inpod-probes-v4 dst -j SNAT --to-source 169.254.7.127
"""

LINKERD = """*nat
-A PREROUTING -m comment --comment "proxy-init/install-proxy-init-prerouting" -j PROXY_INIT_REDIRECT
-A OUTPUT -m comment --comment "proxy-init/install-proxy-init-output/1676542558" -j PROXY_INIT_OUTPUT
-A PROXY_INIT_OUTPUT -m owner --uid-owner 2102 -m comment --comment "proxy-init/ignore-proxy-user-id" -j RETURN
-A PROXY_INIT_OUTPUT -o lo -m comment --comment "proxy-init/ignore-loopback" -j RETURN
-A PROXY_INIT_OUTPUT -p tcp -m multiport --dports 443,6443 -m comment --comment "proxy-init/ignore-port-443,6443" -j RETURN
-A PROXY_INIT_OUTPUT -p tcp -m comment --comment "proxy-init/redirect-all-outgoing-to-proxy-port" -j REDIRECT --to-ports 4140
-A PROXY_INIT_REDIRECT -p tcp -m comment --comment "proxy-init/redirect-all-incoming-to-proxy-port" -j REDIRECT --to-ports 4143
"""

CONSUL = """*nat
-A PREROUTING -p tcp -j CONSUL_PROXY_INBOUND
-A OUTPUT -p udp -m udp --dport 53 -j CONSUL_DNS_REDIRECT
-A OUTPUT -p tcp -j CONSUL_PROXY_OUTPUT
-A CONSUL_DNS_REDIRECT -p udp -m udp --dport 53 -j DNAT --to-destination 10.34.16.20:53
-A CONSUL_PROXY_INBOUND -p tcp -j CONSUL_PROXY_IN_REDIRECT
-A CONSUL_PROXY_IN_REDIRECT -p tcp -j REDIRECT --to-ports 20000
-A CONSUL_PROXY_OUTPUT -m owner --uid-owner 5995 -j RETURN
-A CONSUL_PROXY_OUTPUT -j CONSUL_PROXY_REDIRECT
-A CONSUL_PROXY_REDIRECT -p tcp -j REDIRECT --to-ports 15001
"""


@pytest.mark.parametrize(
    ("saved", "program"), [(SIDECAR, "Istio"), (AMBIENT, "Istio"), (LINKERD, "Linkerd"), (CONSUL, "Consul")]
)
def test_every_rule_is_of_the_mesh(saved: str, program: str) -> None:
    assert others(saved, program) == []
    assert len(owners_of(saved)) == saved.count("\n-A ")


@pytest.mark.parametrize(
    ("table", "chain", "text", "named"),
    [
        ("istio-proxy-nat", "istio-redirect", "meta l4proto tcp redirect to :15001", "Istio, table istio-proxy-nat"),
        ("istio-proxy-raw", "istio-drop", "ct state invalid drop", "Istio, table istio-proxy-raw"),
        ("istio-ambient-nat", "output", "jump istio-output", "Istio, table istio-ambient-nat"),
        ("consul_tproxy", "CONSUL_NAT_OUTPUT", "meta l4proto tcp jump CONSUL_PROXY_OUTPUT", "Consul, table consul_tproxy"),
        ("istio-shop", "output", "jump istio-output", "the administrator"),
        ("consul_tproxy2", "output", "drop", "the administrator"),
    ],
)
def test_tables_of_nftables(table: str, chain: str, text: str, named: str) -> None:
    assert nft_owner(table, chain, text) == named


@pytest.mark.parametrize("chain", ["ISTIO_SHOP", "ISTIO_OUTPUT2", "PROXY_INIT_SHOP", "CONSUL_PROXY_SHOP", "CONSUL"])
def test_a_name_that_only_begins_alike_is_the_administrators(chain: str) -> None:
    rules = f"*nat\n-A OUTPUT -p tcp -j {chain}\n-A {chain} -p tcp -j REDIRECT --to-ports 15001\n"
    assert owners_of(rules) == [("OUTPUT", "the administrator"), (chain, "the administrator")]


def test_a_comment_inside_a_chain_of_others_names_no_mesh() -> None:
    rule = '*nat\n-A MINE -p tcp -m comment --comment "proxy-init/ignore-loopback" -j RETURN\n'
    assert owners_of(rule) == [("MINE", "the administrator")]
