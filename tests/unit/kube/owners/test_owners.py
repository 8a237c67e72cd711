# SPDX-License-Identifier: Apache-2.0
"""The owner of a rule, rule by rule; `make owners` goes through all rules of all nodes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import check_owners
from tests.support.nodes import MODES, node, nodes
from tracer.kube.catalog import ClusterView
from tracer.kube.owners import denial_of, finders, marks, owner_of, policy_mark, policy_marks
from tracer.kube.owners.kube_proxy_iptables import service_in
from tracer.kube.owners.kube_proxy_ipvs import owner_of_virtual_server
from tracer.kube.owners.kube_proxy_nftables import owner_of_element
from tracer.model.kube import Owner
from tracer.model.rule import Rule, Ruleset
from tracer.rules import save_parser


def owner(text: str, table: str = "nat", cluster: ClusterView | None = None, others: str = "") -> Owner:
    """The owner of the rule `-A CHAIN ...`; other rules may follow it."""
    rules = save_parser.parse(f"*{table}\n{text}\n{others}")
    chain = text.split()[1]
    return owner_of(rules.chain("ip", table, chain)[0], rules, cluster or ClusterView())


@pytest.mark.parametrize(
    ("table", "rule", "text"),
    [
        ("nat", "-A PREROUTING -j KUBE-SERVICES", "kube-proxy KUBE-SERVICES"),
        ("nat", '-A KUBE-SERVICES -d 10.0.0.1/32 -p tcp -m comment --comment "a/b:c cluster IP" -m tcp --dport 80 -j '
         "KUBE-SVC-MNRNS2YGWPBPVXQH", "kube-proxy, for an unknown object"),
        ("filter", '-A KUBE-EXTERNAL-SERVICES -p tcp -m comment --comment "default/lonely-web:http has no endpoints" '
         "-m addrtype --dst-type LOCAL -m tcp --dport 30584 -j REJECT",
         "Service default/lonely-web:http, NodePort 30584, no endpoints"),
        ("filter", '-A KUBE-NODEPORTS -p tcp -m comment --comment "a/b:c health check node port" --dport 32198 -j ACCEPT',
         "Service a/b:c, health check port 32198"),
        ("filter", '-A KUBE-PROXY-FIREWALL -p tcp -m comment --comment "a/b:c traffic not accepted by KUBE-FW-X" -j DROP',
         "Service a/b:c, outside loadBalancerSourceRanges"),
        ("filter", "-A INPUT -j KUBE-FIREWALL", "kubelet KUBE-FIREWALL"),
        ("filter", "-A KUBE-FIREWALL -m mark --mark 0x8000/0x8000 -j DROP", "kubelet KUBE-FIREWALL"),
        ("nat", "-A KUBE-FIREWALL -j KUBE-MARK-DROP", "kube-proxy KUBE-FIREWALL"),
        ("nat", "-A KUBE-MARK-DROP -j MARK --set-xmark 0x8000/0x8000", "kubelet KUBE-MARK-DROP"),
        ("nat", "-A KUBE-SEP-AAAAAAAAAAAAAAAA -p tcp -j DNAT --to-destination 10.0.0.1:1", "kube-proxy, for an unknown object"),
        ("nat", "-A POSTROUTING -s 10.9.0.0/16 -d 10.9.0.0/16 -j RETURN", "the administrator"),
        ("filter", '-A FORWARD -m comment --comment "cali:wUHhoiAYhphO9Mso" -j cali-FORWARD', "Calico, chain cali-FORWARD"),
        ("filter", '-A cali-tw-cali1 -m comment --comment "cali:x" -j DROP', "Calico, chain cali-tw-cali1"),
        ("filter", '-A INPUT -m comment --comment "cilium-feeder: CILIUM_INPUT" -j CILIUM_INPUT', "Cilium, chain CILIUM_INPUT"),
        ("filter", '-A FORWARD -m comment --comment "kube-router netpol - X" -j KUBE-ROUTER-FORWARD',
         "kube-router, chain KUBE-ROUTER-FORWARD"),
        ("filter", '-A KUBE-ROUTER-FORWARD -d 10.1.0.3/32 -m comment --comment "rule to jump traffic destined to POD '
         'name:web-a namespace: shop to chain KUBE-POD-FW-X" -j KUBE-POD-FW-X',
         "pod shop/web-a, chain KUBE-ROUTER-FORWARD (kube-router)"),
        ("nat", "-A DOCKER -i docker0 -j RETURN", "Docker DOCKER"),
        ("nat", "-A POSTROUTING -s 172.17.0.0/16 ! -o docker0 -j MASQUERADE", "Docker"),
        ("filter", "-A FORWARD -i docker0 ! -o docker0 -j ACCEPT", "Docker"),
        ("filter", "-A FORWARD -i docker0 -p tcp -m tcp --dport 25 -j DROP", "the administrator"),
        ("filter", "-A FORWARD -j ufw-before-forward", "ufw, chain ufw-before-forward"),
        ("nat", "-A AWS-SNAT-CHAIN-0 -j RETURN", "Amazon VPC CNI, chain AWS-SNAT-CHAIN-0"),
        ("filter", "-A CNI-ADMIN -j DROP", "the administrator CNI-ADMIN"),
        ("nat", '-A POSTROUTING -s 10.1.0.3/32 -m comment --comment "name: \\"n\\" id: \\"i\\"" -j CNI-012345'
         "6789abcdef01234567",
         "CNI bridge, for an unknown object"),
        ("filter", "-A DOCKER-USER -s 1.2.3.4/32 -j DROP", "the administrator DOCKER-USER"),
        ("filter", "-A DOCKER-USER -j RETURN", "Docker DOCKER-USER"),
        ("filter", "-A INPUT -p tcp -m tcp --dport 22 -j ACCEPT", "the administrator"),
        ("nat", "-A POSTROUTING -m comment --comment \"flanneld masq\" -j FLANNEL-POSTRTG", "flannel"),
        ("nat", "-A KUBE-NODE-PORT -p tcp -m set --match-set KUBE-NODE-PORT-TCP dst -j KUBE-MARK-MASQ",
         "kube-proxy KUBE-NODE-PORT"),
        ("nat", "-A CNI-DN-0123456789abcdef01234 -p tcp -m tcp --dport 80 -j DNAT --to-destination 10.0.0.1:80",
         "portmap, for an unknown object, hostPort 80"),
    ],
)  # fmt: skip
def test_from_the_rule_alone(table: str, rule: str, text: str) -> None:
    assert owner(rule, table).text == text


def test_a_comment_that_does_not_fit_its_hash_is_not_used() -> None:
    good = '-A KUBE-SVC-5DZI2HW7VHZLUOJ5 -m comment --comment "default/http-proxy" -j KUBE-SEP-66PQAUDBO7BH47NT'
    assert owner(good).label == "default/http-proxy"
    assert owner(good.replace("http-proxy", "http-other")).kind == "unknown"


@pytest.mark.parametrize(
    ("comment", "named"),
    [
        ("a/b", ("a", "b", "")),
        ("a/b:c -> 10.0.0.1:80", ("a", "b", "c")),
        ("pod traffic for a/b:c external destinations", ("a", "b", "c")),
        ("a/b:c has no local endpoints", ("a", "b", "c")),
        ("", None),
        ("cluster IP", None),
        ("allow a/b please", None),
    ],
)
def test_comments(comment: str, named: tuple[str, str, str] | None) -> None:
    assert service_in(comment) == named


def test_bare_rules_of_flannel_need_each_other() -> None:
    inside = "-A POSTROUTING -s 10.9.0.0/16 -d 10.9.0.0/16 -j RETURN"
    out = "-A POSTROUTING -s 10.9.0.0/16 ! -d 224.0.0.0/4 -j MASQUERADE --random-fully"
    assert owner(inside, others=out).program == "flannel"
    assert owner(inside, others=out.replace("10.9", "10.8")).kind == "administrator"


def test_the_stale_rule_of_flannel(tmp_path: Path) -> None:
    one = node("1.20.2-iptables-legacy", "S3")
    known = one.cluster_view(tmp_path)
    (_, rules), *_ = one.rulesets()
    texts = [owner_of(r, rules, known).text for r in rules.chain("ip", "nat", "POSTROUTING") if r.target == "RETURN"]
    assert texts == ["flannel", "flannel, podCIDR 10.244.3.0/24 (not this node's)"]
    chain = rules.chain("ip", "nat", "FLANNEL-POSTRTG")
    assert "flannel, podCIDR 10.244.0.0/24" in [owner_of(r, rules, known).text for r in chain]


@pytest.mark.parametrize("mode", ["1.20.2-iptables-legacy", "1.36.2-iptables-nft", "1.36.2-nftables-nft", "1.20.2-ipvs-nft"])
def test_host_ports_by_the_cni_cache_and_without_it(mode: str, tmp_path: Path) -> None:
    one = node(mode, "S5")
    known = one.cluster_view(tmp_path, with_api=False)
    rules = next(r for name, r in one.rulesets() if ("nftables-nft" in mode) == name.startswith("nft.json"))
    dnat = [r for c in rules.chains.values() for r in c if r.target == "DNAT" and "3306" in r.text]
    assert {owner_of(r, rules, known).text for r in dnat} == {"hostPort 3306 of pod default/mysql-b (portmap)"}
    without_cluster = {owner_of(r, rules, ClusterView()).text for r in dnat}
    assert without_cluster == {"portmap, for an unknown object, hostPort 3306"}


def test_host_port_by_the_api(tmp_path: Path) -> None:
    """The address and the host port must both be the pod's."""
    one = node("1.20.2-ipvs-nft", "S5")
    known = ClusterView(one.cluster_view(tmp_path).store)
    (_, rules), *_ = one.rulesets()
    (dnat,) = [r for c in rules.chains.values() for r in c if r.target == "DNAT"]
    assert owner_of(dnat, rules, known).evidence == "API: pod address and hostPort"
    other = Rule("ip", "nat", dnat.chain, 1, dnat.text.replace("10.224.0.222", "10.224.0.99"), "", "DNAT")
    assert owner_of(other, Ruleset("nft", 0, "", {}), known).kind == "unknown"


def test_where_a_dnat_leads(tmp_path: Path) -> None:
    one = node("1.20.2-iptables-legacy", "S2-one")
    (_, rules), *_ = one.rulesets()
    texts = {owner_of(r, rules, one.cluster_view(tmp_path)).text for r in rules.chain("ip", "nat", "KUBE-SEP-66PQAUDBO7BH47NT")}
    assert texts == {"Service default/http-proxy", "Service default/http-proxy -> pod default/http-proxy-a (node-1)"}


def test_elements_and_virtual_servers(tmp_path: Path) -> None:
    known = node("1.20.2-ipvs-nft", "S2-three").cluster_view(tmp_path)
    assert owner_of_virtual_server("127.0.0.1", 30285, "tcp", known).text == "Service default/http-proxy, NodePort 30285"
    assert owner_of_virtual_server("172.30.253.123", 8080, "tcp", known).text == "Service default/http-proxy, cluster IP"
    assert not owner_of_virtual_server("172.30.253.123", 30285, "tcp", known).known, "a cluster IP has no NodePort"
    element = owner_of_element('tcp . 30420 comment "2048-game/service-2048" : drop', ClusterView())
    assert element and element.text == "Service 2048-game/service-2048, NodePort 30420, no local endpoints"
    element = owner_of_element("tcp . 30285 : goto external-3I2DGWPK-default/http-proxy/tcp/", ClusterView())
    assert element and element.text == "Service default/http-proxy, NodePort 30285"
    assert owner_of_element("0 : goto somewhere", ClusterView()) is None


def test_hidden_text_is_unknown_not_the_administrators() -> None:
    hidden = Rule("ip", "nat", "POSTROUTING", 1, 'ip saddr 10.0.0.0/8 xt match "comment" masquerade', "", "MASQUERADE", 7)
    assert owner_of(hidden, Ruleset("nft", 0, "", {}), ClusterView()).kind == "unknown"
    assert Owner("unknown").text == "unknown"


def test_writers_are_found_by_their_files() -> None:
    names = {name for name, _ in finders()}
    assert names == {"antrea", "aws_vpc_cni", "azure", "calico", "cilium", "cni_bridge", "consul", "docker", "firewalld",
                     "flannel", "ip_masq_agent", "istio", "kube_network_policies", "kube_proxy_iptables",
                     "kube_proxy_ipvs", "kube_proxy_nftables",
                     "kube_router", "kubelet", "libvirt", "linkerd", "other_programs", "portmap", "ufw"}  # fmt: skip
    assert marks()["KUBE-FIREWALL"] == "KUBE-MARK-DROP"


def test_the_package_is_not_searched_for_each_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    rules = save_parser.parse("*filter\n-A cali-tw-cali1 -j DROP\n-A INPUT -j MARK --set-xmark 0x10000/0x10000")
    (rule,), policy = rules.chain("ip", "filter", "cali-tw-cali1"), Owner("NetworkPolicy", "shop", "web", program="Calico")
    denial_of(rule, rules, ClusterView())

    def searched(*_: object) -> list[object]:
        raise AssertionError("the package is searched again")

    monkeypatch.setattr("pkgutil.iter_modules", searched)
    assert denial_of(rule, rules, ClusterView()) is None and owner_of(rule, rules, ClusterView()).program == "Calico"
    assert policy_mark(rule, rules, policy, 0x10000) == 0x10000 and policy_marks() and marks()


def test_the_bridges_own_masquerade(tmp_path: Path) -> None:
    one = node("1.36.2-iptables-nft", "S5")
    container = next(c for c, pod in one.containers().items() if pod == "default/mysql-b")
    rule = f'-A POSTROUTING -s 10.224.0.224/32 -m comment --comment "name: \\"azure\\" id: \\"{container}\\"" -j CNI-{"0" * 24}'
    assert owner(rule, cluster=one.cluster_view(tmp_path)).text == "pod default/mysql-b, ipMasq (CNI bridge)"


@pytest.mark.parametrize("mode", MODES)
def test_every_rule_of_every_small_node(mode: str) -> None:
    """As `make owners` does, without the large clusters."""
    counts = {setting: check_owners.Count() for setting in check_owners.COMPARISONS}
    for one in nodes(mode):
        if not one.scenario.startswith("big"):
            check_owners.check(one, counts)
    assert [line for count in counts.values() for line in count.wrong] == []
    assert not counts["with the API"].unknown and not counts["with the API, comments hidden"].unknown
    assert counts["with the API"].owned > 300
