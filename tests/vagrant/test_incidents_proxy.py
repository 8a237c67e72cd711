# SPDX-License-Identifier: Apache-2.0
"""The rules of the varied incidents are equal to those that kube-proxy wrote for the same Services."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "vagrant"))

from incidents.proxy import iptables, ipvs, nftables
from incidents.proxy.model import HostPort, Service
from tests.support.nodes import node
from tracer.model.rule import Ruleset
from tracer.rules import save_parser

PODS = tuple((f"10.244.0.{n}", 8080) for n in (11, 12, 13))
HTTP = Service("default/http-proxy", "172.30.253.123", 8080, 30285, PODS)
LONELY = Service("default/lonely-web", "172.30.10.84", 80, 30584, port_name="http")
GAME = Service("2048-game/service-2048", "172.30.20.48", 80, 30420, (("10.244.1.21", 80), ("10.244.1.22", 80)), local=True)


_ROUND = re.compile(r"(--probability 0\.\d{6})\d*")


def written(mode: str, scenario: str) -> Ruleset:
    return next(r for name, r in node(mode, scenario).rulesets() if name == "iptables-save")


@pytest.mark.parametrize(("service", "scenario"), [(HTTP, "S2-three"), (LONELY, "S1"), (GAME, "S4")])
def test_iptables_rules_are_those_of_kube_proxy(service: Service, scenario: str) -> None:
    real, made = written("1.36.2-iptables-legacy", scenario), save_parser.parse(iptables.rules([service]))
    count = 0
    for (family, table, chain), rules in made.chains.items():
        if not chain.startswith("KUBE-"):
            continue
        # The kernel rounds the probability, and iptables-save prints the rounded value.
        texts = [_ROUND.sub(r"\1", r.text) for r in real.chain(family, table, chain)]
        mine = [_ROUND.sub(r"\1", r.text) for r in rules]
        assert set(mine) <= set(texts), (chain, [r for r in mine if r not in texts])
        order = [texts.index(r) for r in mine]
        assert order == sorted(order), chain
        count += sum("comment" in r.text and service.label in r.comment for r in rules)
    assert count >= 2, "the Service's rules are among them"


@pytest.mark.parametrize(("service", "scenario"), [(HTTP, "S2-three"), (LONELY, "S1"), (GAME, "S4")])
def test_nftables_rules_are_those_of_kube_proxy(service: Service, scenario: str) -> None:
    text, real = nftables.rules([service], "192.168.56.10"), node("1.36.2-nftables-nft", scenario)
    rules = next(r for name, r in real.rulesets() if name == "nft.json")
    services = {re.sub(r'"', "", r.text) for r in rules.chain("ip", "kube-proxy", "services")}
    chains = {chain for _, table, chain in rules.chains if table == "kube-proxy"}
    made = set(re.findall(r"^chain (\S+) \{", text, re.M))
    assert {c for c in made if "kubernetes" not in c} <= chains, made - chains
    for line in services:
        assert line in text.replace('"', "") or "comment" in line, line
    for (_, table, name), found in real.maps().items():
        for element in found.elements.values() if table == "kube-proxy" else ():
            if service.name in element.text:
                assert element.text in text, (name, element.text)
    for chain in (c for c in made if service.name in c):
        for rule in rules.chain("ip", "kube-proxy", chain):
            assert rule.text.replace("dnat ip to", "dnat ip to") in text, rule.text


@pytest.mark.parametrize(("service", "scenario"), [(HTTP, "S2-three"), (LONELY, "S1"), (GAME, "S4")])
def test_ipvs_rules_are_those_of_kube_proxy(service: Service, scenario: str) -> None:
    real = node("1.20.2-ipvs-nft", scenario)
    rules = next(r for name, r in real.rulesets() if name == "iptables-nft-save")
    for (family, table, chain), mine in save_parser.parse(ipvs.rules([service])).chains.items():
        if chain in ("KUBE-SERVICES", "KUBE-NODE-PORT", "KUBE-POSTROUTING", "KUBE-MARK-MASQ"):
            assert [r.text for r in mine] == [r.text for r in rules.chain(family, table, chain)], chain
    assert set(ipvs.virtual_servers([service], "192.168.56.10").splitlines()) <= set(real.files["ipvsadm-save"].splitlines())
    made = {line for line in ipvs.sets([service]).splitlines() if line.startswith("add")}
    assert made <= set(real.files["ipset-save"].splitlines()) and len(made) >= 2


def test_portmap_and_ipv6() -> None:
    text = iptables.rules([HTTP], [HostPort(3306, "10.224.0.222", 3306, "ab" * 32)], first="portmap")
    made = save_parser.parse(text)
    assert [r.target for r in made.chain("ip", "nat", "PREROUTING")] == ["CNI-HOSTPORT-DNAT", "KUBE-SERVICES"]
    (entry,) = made.chain("ip", "nat", "CNI-HOSTPORT-DNAT")
    assert entry.comment == f'dnat name: "azure" id: "{"ab" * 32}"' and entry.target in {c for _, _, c in made.chains}
    six = Service("default/web", "fd00:172:30::7", 80, 30080, (("fd00:10:244::11", 8080),))
    text = iptables.rules([six])
    assert "-j DNAT --to-destination [fd00:10:244::11]:8080" in text and "-d fd00:172:30::7/128 -p tcp" in text
    assert "table ip6 kube-proxy {" in nftables.rules([six], "fd00:56::10")
