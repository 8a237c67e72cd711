# SPDX-License-Identifier: Apache-2.0
"""A hostPort that takes the packets for a Service or another machine. Packets for its own address are no finding."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from tests.support import findings as f
from tests.support.nodes import node
from tracer.kube.catalog import ClusterView
from tracer.kube.owners import owner_of
from tracer.model.endpoints import Endpoints
from tracer.model.evidence import Evidence
from tracer.model.finding import Finding
from tracer.model.hop import Nat, NatHop
from tracer.model.kube import ObjectReference
from tracer.model.namespace_name import HOST
from tracer.model.netfilter import Hook
from tracer.model.packet import Packet
from tracer.model.rule import Rule, RuleHit, RuleLocation, Ruleset, RuleTrace
from tracer.node.node import ListeningSocket

IPVS, IPTABLES = "1.20.2-ipvs-nft", "1.20.2-iptables-legacy"
MYSQL_A = "172.30.33.7"
"""Cluster IP of default/mysql-np, which has port 3306."""


def jump_first(rules: Ruleset, local: bool = True) -> Ruleset:
    """The rules with portmap's jump in front of kube-proxy's, as portmap before 0.7.5 writes them."""
    key = ("ip", "nat", "PREROUTING")
    kube, cni = (next(r for r in rules.chains[key] if r.target == t) for t in ("KUBE-SERVICES", "CNI-HOSTPORT-DNAT"))
    text = cni.text if local else "-j CNI-HOSTPORT-DNAT"
    swapped = (replace(cni, number=1, text=text), replace(kube, number=2))
    return replace(rules, chains={**rules.chains, key: swapped})


def request(rules: Ruleset, to: str, port: int = 3306) -> Packet:
    dn = f.rule(rules, "nat", "CNI-HOSTPORT-DNAT", f"--dports {port}")
    hit = f.hit(rules, "nat", ("PREROUTING", "CNI-HOSTPORT-DNAT"), (dn.chain, dn.target), (dn.target, "-j DNAT"))
    before = Endpoints(f.CLIENT, 40000, to, port)
    after = replace(before, dst="10.224.0.222")
    return f.packet([f.nat(rules, Hook.PREROUTING, "DNAT", before, after, hit)], before)


def cluster_view(mode: str, folder: Path, *local: str, scenario: str = "S5-nodeport", with_api: bool = True) -> ClusterView:
    whole = node(mode, scenario).cluster_view(folder, with_api)
    return replace(whole, local=whole.local | set(local))


def found(made: Packet, of: ClusterView, **on: Mapping[object, object]) -> list[Finding]:
    return f.findings_of([made], of, f.FakeNode(**on))[0]  # type: ignore[arg-type]


def test_ipvs_makes_every_cluster_ip_local(tmp_path: Path) -> None:
    rules = jump_first(node(IPVS, "S5-nodeport").iptables())
    of = cluster_view(IPVS, tmp_path, MYSQL_A)
    (finding,) = found(request(rules, MYSQL_A), of, interfaces={MYSQL_A: "kube-ipvs0"})
    assert finding.cause == (
        "hostPort 3306 of pod default/mysql-b takes the packets for Service default/mysql-np:mysql (cluster IP 172.30.33.7):"
        " every cluster IP is local to this node by kube-ipvs0, and portmap's jump is rule 1 of PREROUTING,"
        " kube-proxy's rule 2."
    )
    assert finding.certain and finding.name == "hostport_takes_service"
    assert finding.subject == ObjectReference("Pod", "default", "mysql-b")
    assert f.proofs(finding, "address") == ["172.30.33.7 is an address of kube-ipvs0, so --dst-type LOCAL fits it (netlink)"]
    assert "PREROUTING 1 > CNI-HOSTPORT-DNAT 1 > CNI-DN-" in f.proofs(finding, "rule")[0]
    assert "hostPort 3306 belongs to pod default/mysql-b (CNI result cache)" in f.proofs(finding, "object")


def test_ipvs_without_the_api(tmp_path: Path) -> None:
    rules = jump_first(node(IPVS, "S5-nodeport").iptables())
    of = cluster_view(IPVS, tmp_path, MYSQL_A, with_api=False)
    (finding,) = found(request(rules, MYSQL_A), of, interfaces={MYSQL_A: "kube-ipvs0"})
    assert "takes the packets for the Service at 172.30.33.7" in finding.cause


def test_portmaps_jump_in_front_without_an_address_match(tmp_path: Path) -> None:
    rules = jump_first(node(IPTABLES, "S5-nodeport").iptables(), local=False)
    of = cluster_view(IPTABLES, tmp_path)
    (service,) = found(request(rules, MYSQL_A), of)
    assert service.cause.endswith(
        "portmap's jump is rule 1 of PREROUTING, kube-proxy's rule 2, and it does not ask whether the address is local."
    )
    (elsewhere,) = found(request(rules, "192.168.56.20"), of)
    assert "takes the packets for NodePort 3306 of Service default/mysql-np:mysql at 192.168.56.20" in elsewhere.cause
    rules, of = jump_first(node(IPTABLES, "S5").iptables(), local=False), cluster_view(IPTABLES, tmp_path, scenario="S5")
    (machine,) = found(request(rules, "192.168.56.20"), of)
    assert "takes the packets for node node-2 at 192.168.56.20" in machine.cause
    assert not found(request(rules, "192.168.56.77"), of, interfaces={"192.168.56.77": "eth0"}), (
        "an address that this node got later"
    )
    (outside,) = found(request(rules, "203.0.113.9"), of)
    assert "takes the packets for the machine at 203.0.113.9" in outside.cause


def test_a_node_port_of_the_same_number(tmp_path: Path) -> None:
    rules = jump_first(node(IPTABLES, "S5-nodeport").iptables())
    (finding,) = found(request(rules, "192.168.56.10"), cluster_view(IPTABLES, tmp_path))
    assert "takes the packets for NodePort 3306 of Service default/mysql-np:mysql" in finding.cause
    assert finding.cause.endswith("portmap's jump is rule 1 of PREROUTING, kube-proxy's rule 2.")


def test_in_nftables_the_order_of_registration_decides(tmp_path: Path) -> None:
    one = node("1.36.2-nftables-nft", "S5-nodeport")
    rules = next(r for name, r in one.rulesets() if name == "nft.json")
    dnat = next(r for r in rules.chain("ip", "cni_hostport", "hostports") if "dport 3306" in r.text)
    hit = (RuleLocation("prerouting", 1), RuleLocation("hostports", dnat.number))
    before = Endpoints(f.CLIENT, 40000, "192.168.56.10", 3306)
    trace = RuleTrace((RuleHit(hit, dnat, "DNAT", Evidence.OBSERVED),), ruleset=rules)
    hop = NatHop(0, HOST, Hook.PREROUTING, nat=Nat("DNAT", before, replace(before, dst="10.224.0.222")), rule_trace=trace)
    (finding,) = found(f.packet([hop], before), one.cluster_view(tmp_path))
    assert finding.cause.endswith(
        "portmap's base chain ran before kube-proxy's: of two chains at one priority the one registered last runs first."
    )
    assert "a restart is no cure" in finding.cure


def test_its_own_port_at_its_own_address_is_no_finding(tmp_path: Path) -> None:
    rules = node(IPTABLES, "S5").iptables()
    for scenario, with_api in (("S5", True), ("S5", False)):
        of = cluster_view(IPTABLES, tmp_path, scenario=scenario, with_api=with_api)
        assert not found(request(rules, "192.168.56.10"), of)
        assert not found(request(rules, "127.0.0.1"), of)


def test_a_service_that_wins_is_no_finding(tmp_path: Path) -> None:
    rules = node(IPTABLES, "S5-nodeport").iptables()
    hit = f.hit(
        rules,
        "nat",
        ("PREROUTING", "KUBE-SERVICES"),
        ("KUBE-SERVICES", "KUBE-NODEPORTS"),
        ("KUBE-NODEPORTS", "3306 -j KUBE-SVC"),
        ("KUBE-SVC-SM63EAG2LEYE5ZJE", "KUBE-SEP"),
        ("KUBE-SEP-YUYDTNEHFESKDT5F", "DNAT"),
    )
    before = Endpoints(f.CLIENT, 40000, "192.168.56.10", 3306)
    hop = f.nat(rules, Hook.PREROUTING, "DNAT", before, replace(before, dst="10.244.0.11", dport=8080), hit)
    assert not found(f.packet([hop], before), cluster_view(IPTABLES, tmp_path))


def test_another_programs_dnat_is_no_finding(tmp_path: Path) -> None:
    rule = Rule(
        "ip", "nat", "PREROUTING", 1, "-p tcp -m tcp --dport 3306 -j DNAT --to-destination 10.9.9.9:3306", target="DNAT"
    )
    rules = Ruleset("legacy", 0, "", {("ip", "nat", "PREROUTING"): (rule,)})
    of = cluster_view(IPTABLES, tmp_path)
    assert owner_of(rule, rules, of).kind == "administrator"
    before = Endpoints(f.CLIENT, 40000, MYSQL_A, 3306)
    hit = RuleHit((RuleLocation("PREROUTING", 1),), rule, "DNAT", Evidence.OBSERVED)
    assert not found(
        f.packet([f.nat(rules, Hook.PREROUTING, "DNAT", before, replace(before, dst="10.9.9.9"), hit)], before), of
    )


def test_the_check_says_what_ss_and_ipvsadm_show(tmp_path: Path) -> None:
    rules = jump_first(node(IPTABLES, "S5-nodeport").iptables())
    of, made = cluster_view(IPTABLES, tmp_path), request(rules, "192.168.56.10")
    (finding,) = found(made, of)
    assert "`ss -lntp 'sport = :3306'` shows nothing, because a hostPort has no socket" in finding.check
    assert "ipvsadm" not in finding.check
    held = ListeningSocket("0.0.0.0", 3306, 88, "kube-proxy")
    (finding,) = found(made, of, listeners={(3306, "tcp"): held})
    assert "shows kube-proxy (pid 88), and not the pod" in finding.check
    rules = jump_first(node(IPVS, "S5-nodeport").iptables())
    (finding,) = found(request(rules, MYSQL_A), cluster_view(IPVS, tmp_path, MYSQL_A), interfaces={MYSQL_A: "kube-ipvs0"})
    assert "`ipvsadm -Ln | grep :3306` shows the Service's virtual server" in finding.check


def test_the_check_names_the_tool_of_the_back_end(tmp_path: Path) -> None:
    rules = jump_first(node(IPTABLES, "S5-nodeport").iptables())
    (finding,) = found(request(rules, "192.168.56.10"), cluster_view(IPTABLES, tmp_path))
    assert finding.check.startswith(
        "`iptables-legacy-save -t nat | grep -e CNI-HOSTPORT -e KUBE-SERVICES` shows portmap's rules"
    )
