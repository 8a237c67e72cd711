# SPDX-License-Identifier: Apache-2.0
"""Packets of the scenarios, with rule traces of their rulesets: the owner of each hop, and the reason why it acted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support import hop_fields
from tests.support.nodes import node
from tracer.kube.attribution import attribute
from tracer.kube.catalog import ClusterView
from tracer.kube.endpoint_owners import end_of, owner_of_rewrite
from tracer.kube.fwmarks import MarkTracker
from tracer.model.endpoints import Endpoints
from tracer.model.evidence import Evidence
from tracer.model.hop import (
    ChainHop,
    HookHop,
    Hop,
    IpvsDecision,
    IpvsNatHop,
    Nat,
    NatHop,
    Socket,
    SocketHop,
    TableHop,
    owner_of,
)
from tracer.model.kube import Owner
from tracer.model.namespace_name import HOST, Netns, distinct_name
from tracer.model.netfilter import Hook
from tracer.model.packet import Flow, Packet
from tracer.model.rule import RuleHit, RuleLocation, Ruleset, RuleTrace


def hit(rules: Ruleset, table: str, *path: tuple[str, int], verdict: str = "", element: str = "") -> RuleHit:
    """The rule hit at the end of the path. The rule is looked up; if no verdict is given, its target is the verdict."""
    chain, number = path[-1]
    rule = rules.chain("ip", table, chain)[number - 1]
    places = tuple(RuleLocation(*p) for p in path)
    return RuleHit(places, rule, verdict or rule.target, Evidence.OBSERVED, element)


def packet(hops: list[Hop], dst: str = "192.168.56.10", dport: int = 30285) -> Packet:
    ends = Endpoints("192.168.56.1", 40000, dst, dport)
    return Packet(1, 0, HOST, "eth0", "IPv4", "TCP", ends, hops=tuple(hops))


def numbered(rules: Ruleset, table: str, chain: str, fragment: str) -> tuple[str, int]:
    """Chain and number of the first rule of a chain that has this fragment in its text."""
    return next((chain, r.number) for r in rules.chain("ip", table, chain) if fragment in r.text)


def test_a_node_port_request_from_dnat_to_masquerade(tmp_path: Path) -> None:
    one = node("1.20.2-iptables-legacy", "S2-one")
    rules, known = one.iptables(), one.cluster_view(tmp_path)
    path = [numbered(rules, "nat", "PREROUTING", "KUBE-SERVICES"), numbered(rules, "nat", "KUBE-SERVICES", "KUBE-NODEPORTS")]
    mark, jump = (numbered(rules, "nat", "KUBE-NODEPORTS", f"30285 -j {to}") for to in ("KUBE-MARK-MASQ", "KUBE-SVC"))
    service = numbered(rules, "nat", "KUBE-SVC-5DZI2HW7VHZLUOJ5", "KUBE-SEP")
    end = numbered(rules, "nat", "KUBE-SEP-66PQAUDBO7BH47NT", "DNAT")
    pre = RuleTrace(
        (hit(rules, "nat", *path, mark, ("KUBE-MARK-MASQ", 1)), hit(rules, "nat", *path, jump, service, end)), ruleset=rules
    )
    masquerade = numbered(rules, "nat", "KUBE-POSTROUTING", "MASQUERADE")
    post = RuleTrace((hit(rules, "nat", numbered(rules, "nat", "POSTROUTING", "KUBE-POSTROUTING"), masquerade),), ruleset=rules)
    attributed = packet(
        [
            TableHop(0, HOST, Hook.PREROUTING, table="nat", rule_trace=pre),
            NatHop(1, HOST, Hook.PREROUTING, nat=nat("DNAT", ("192.168.56.10", 30285), ("10.244.0.11", 8080))),
            TableHop(2, HOST, Hook.POSTROUTING, table="nat", rule_trace=post),
        ]
    )
    attributed = attribute(attributed, known)
    texts = [hop_fields.owner(hop).text if owner_of(hop) else "" for hop in attributed.hops]
    dnat = "Service default/http-proxy, NodePort 30285 -> pod default/http-proxy-a (node-1)"
    assert texts == [dnat, dnat, "kube-proxy KUBE-POSTROUTING (mark 0x4000 set by KUBE-MARK-MASQ for default/http-proxy)"]
    assert attributed.src_owner and attributed.dst_owner
    assert (attributed.src_owner.text, attributed.dst_owner.text) == ("external", "Service default/http-proxy, NodePort 30285")


def nat(kind: str, before: tuple[str, int], after: tuple[str, int]) -> Nat:
    return Nat(kind, Endpoints("192.168.56.1", 40000, *before), Endpoints("192.168.56.1", 40000, *after))


@pytest.mark.parametrize("with_api", [True, False])
def test_owners_when_the_ruleset_was_not_kept(with_api: bool, tmp_path: Path) -> None:
    """A rule trace has the rules that acted; of the rules that only led there it has the chains' names."""
    one = node("1.36.2-iptables-nft", "S2-one")
    rules = one.iptables()
    chain = "5DZI2HW7VHZLUOJ5"
    jumps = (("PREROUTING", 1), ("KUBE-SERVICES", 3), ("KUBE-NODEPORTS", 2), (f"KUBE-EXT-{chain}", 1))
    mark = hit(rules, "nat", *jumps, ("KUBE-MARK-MASQ", 1))
    dnat = hit(rules, "nat", *jumps[:3], (f"KUBE-EXT-{chain}", 2), (f"KUBE-SVC-{chain}", 2), ("KUBE-SEP-66PQAUDBO7BH47NT", 2))
    masquerade = hit(rules, "nat", ("POSTROUTING", 1), numbered(rules, "nat", "KUBE-POSTROUTING", "MASQUERADE"))
    rewrite = nat("DNAT", ("192.168.56.10", 30285), ("10.244.0.11", 8080))
    attributed = packet(
        [
            NatHop(0, HOST, Hook.PREROUTING, nat=rewrite, rule_trace=RuleTrace((mark, dnat))),
            TableHop(1, HOST, Hook.POSTROUTING, table="nat", rule_trace=RuleTrace((masquerade,))),
        ]
    )
    attributed = attribute(attributed, one.cluster_view(tmp_path, with_api))
    texts = [hop_fields.owner(hop).text if owner_of(hop) else "" for hop in attributed.hops]
    pod = " -> pod default/http-proxy-a (node-1)" if with_api else ""
    assert texts == [
        f"Service default/http-proxy, NodePort 30285{pod}",
        "kube-proxy KUBE-POSTROUTING (mark 0x4000 set by KUBE-MARK-MASQ for default/http-proxy)",
    ]


@pytest.mark.parametrize("with_rules", [True, False])
def test_a_drop_has_the_owner_that_marked_the_packet(with_rules: bool, tmp_path: Path) -> None:
    """Also from rules alone, and without the ruleset: the comment of the rule that jumped is on the path of the rule hit."""
    one = node("1.20.2-iptables-nft", "S4")
    rules = one.iptables()
    known = one.cluster_view(tmp_path, with_api=not with_rules)
    tracker = MarkTracker(known)
    kept = rules if with_rules else Ruleset("", 0, "", {})
    xlb = numbered(rules, "nat", "KUBE-XLB-FGSWHB27NEIMUT22", "no local endpoints")
    tracker.table([hit(rules, "nat", ("PREROUTING", 1), ("KUBE-SERVICES", 9), xlb, ("KUBE-MARK-DROP", 1))], kept)
    drop = numbered(rules, "filter", "KUBE-FIREWALL", "0x8000")
    (owner,) = tracker.table([hit(rules, "filter", ("INPUT", 2), drop)], kept)
    assert owner
    why = ", no local endpoints" if with_rules else ""
    assert owner.text == f"kubelet KUBE-FIREWALL, marked by KUBE-MARK-DROP for 2048-game/service-2048{why}"


def test_a_remembered_rule_trace_has_the_same_owners(tmp_path: Path) -> None:
    """It is remembered by the marks at its start, and only while the objects are the same."""
    one = node("1.20.2-iptables-nft", "S4")
    rules, known = one.iptables(), one.cluster_view(tmp_path, True)
    xlb = numbered(rules, "nat", "KUBE-XLB-FGSWHB27NEIMUT22", "no local endpoints")
    marked = [hit(rules, "nat", ("PREROUTING", 1), ("KUBE-SERVICES", 9), xlb, ("KUBE-MARK-DROP", 1))]
    drop = [hit(rules, "filter", ("INPUT", 2), numbered(rules, "filter", "KUBE-FIREWALL", "0x8000"))]

    def attributed(tables: list[list[RuleHit]]) -> list[list[Owner | None]]:
        tracker = MarkTracker(known)
        return [tracker.table(hits, rules) for hits in tables]

    first, unmarked = attributed([marked, drop]), attributed([drop])
    assert first[1] != unmarked[0], "the same rule trace, with another mark before it"
    assert attributed([marked, drop]) == first and attributed([drop]) == unmarked
    fresh = MarkTracker(one.cluster_view(tmp_path, True))
    assert [fresh.table(list(hits), rules) for hits in (marked, drop)] == first
    known.store.version += 1
    assert known.cache.get_trace(drop, rules, (None, ()), known.store.version) is None
    assert attributed([marked, drop]) == first


def test_a_mark_of_one_packet_is_not_used_for_another(tmp_path: Path) -> None:
    one = node("1.20.2-iptables-nft", "S4")
    rules = one.iptables()
    (owner,) = MarkTracker(one.cluster_view(tmp_path)).table(
        [hit(rules, "filter", numbered(rules, "filter", "KUBE-FIREWALL", "0x8000"))], rules
    )
    assert owner and owner.cause == ""


def test_the_nftables_mode(tmp_path: Path) -> None:
    one = node("1.36.2-nftables-nft", "S2-one")
    rules, known = next(r for name, r in one.rulesets() if name == "nft.json"), one.cluster_view(tmp_path)
    external, service = "external-3I2DGWPK-default/http-proxy/tcp/", "service-3I2DGWPK-default/http-proxy/tcp/"
    element = f"tcp . 30285 : goto {external}"
    pre = [
        hit(rules, "kube-proxy", ("nat-prerouting", 1), ("services", 3), element=element),
        hit(rules, "kube-proxy", ("nat-prerouting", 1), ("services", 3), (external, 1)),
        hit(rules, "kube-proxy", ("nat-prerouting", 1), ("services", 3), (external, 2), (service, 1)),
    ]
    tracker = MarkTracker(known)
    owners = tracker.table(pre, rules)
    assert owners[0] and owners[2]
    assert owners[0].text == "Service default/http-proxy, NodePort 30285"
    assert owners[2].text == "Service default/http-proxy, NodePort 30285 -> pod default/http-proxy-a (node-1)"
    (masq,) = tracker.table([hit(rules, "kube-proxy", ("nat-postrouting", 1), ("masquerading", 1))], rules)
    assert masq
    assert masq.text == f"kube-proxy, chain masquerading (mark 0x4000 set by {external} for default/http-proxy)"


def test_the_clusterip_mark_of_the_nftables_mode_is_for_the_service_that_the_map_chose(tmp_path: Path) -> None:
    one = node("1.36.2-nftables-nft", "S2-one")
    rules, known = next(r for name, r in one.rulesets() if name == "nft.json"), one.cluster_view(tmp_path)
    element = "172.30.253.123 . tcp . 8080 : goto service-3I2DGWPK-default/http-proxy/tcp/"
    tracker = MarkTracker(known)
    first = hit(rules, "kube-proxy", ("nat-output", 1), ("services", 1))
    tracker.table([first, hit(rules, "kube-proxy", ("nat-output", 1), ("services", 2), element=element)], rules)
    (masq,) = tracker.table([hit(rules, "kube-proxy", ("nat-postrouting", 1), ("masquerading", 1))], rules)
    assert masq and masq.cause == "mark 0x4000 set by services for default/http-proxy"


def test_a_host_port_takes_packets_to_a_service(tmp_path: Path) -> None:
    """ipvs: the cluster IP is local, so portmap's rule takes its port 3306: the pod is named, not the Service."""
    one = node("1.20.2-ipvs-nft", "S5-nodeport")
    known = one.cluster_view(tmp_path)
    known = ClusterView(known.store, known.sandboxes, known.local | {"172.30.33.7"})
    owner = owner_of_rewrite(nat("DNAT", ("172.30.33.7", 3306), ("10.224.0.222", 3306)), "tcp", known)
    assert owner and owner.text == "hostPort 3306 of pod default/mysql-b"
    owner = owner_of_rewrite(nat("DNAT", ("172.30.33.7", 3306), ("10.244.0.11", 8080)), "tcp", known)
    assert owner and owner.text == "Service default/mysql-np:mysql, cluster IP -> pod default/http-proxy-a (node-1)"
    assert owner_of_rewrite(nat("DNAT", ("172.30.33.7", 3306), ("10.9.9.9", 1)), "tcp", known) is None
    assert owner_of_rewrite(nat("SNAT", ("172.30.33.7", 3306), ("10.244.0.11", 8080)), "tcp", known) is None


@pytest.mark.parametrize(
    ("end", "text"),
    [
        (("172.30.33.7", 3306), "Service default/mysql-np:mysql, cluster IP"),
        (("172.30.33.7", 9), "Service default/mysql-np, which has no port 9"),
        (
            ("192.168.56.10", 30306),
            "node node-1, NodePort 30306 of default/same-port:tcp-a and hostPort 30306 of default/web-hp",
        ),
        (("192.168.56.10", 22), "node node-1"),
        (("192.168.56.20", 22), "node node-2"),
        (("192.168.56.20", 3306), "Service default/mysql-np:mysql, NodePort 3306"),
        (("127.0.0.1", 9), "node node-1"),
        (("10.244.0.11", 40000), "pod default/http-proxy-a, on node-1"),
        (("10.224.0.222", 3306), "pod default/mysql-b, on node-1"),
        (("10.244.1.77", 1), "unknown, in podCIDR of node-2"),
        (("8.8.8.8", 53), "external"),
    ],
)
def test_ends(end: tuple[str, int], text: str, tmp_path: Path) -> None:
    known = node("1.20.2-ipvs-nft", "S5-nodeport").cluster_view(tmp_path)
    assert end_of(*end, "tcp", known).text == text


def test_ends_without_the_api(tmp_path: Path) -> None:
    known = node("1.20.2-ipvs-nft", "S5-nodeport").cluster_view(tmp_path, with_api=False)
    texts = [end_of(a, p, "tcp", known).text for a, p in (("10.224.0.222", 3306), ("192.168.56.10", 3306), ("8.8.8.8", 53))]
    assert texts == ["pod default/mysql-b", "hostPort 3306 of pod default/mysql-b", "unknown"]


def test_a_pods_loopback_is_not_the_nodes(tmp_path: Path) -> None:
    one = packet([HookHop(0, Netns("cni-3"), Hook.OUTPUT)], "127.0.0.1", 80)
    one = replace(one, endpoints=Endpoints("127.0.0.1", 40000, "127.0.0.1", 80), netns=Netns("cni-3"))
    known = node("1.20.2-ipvs-nft", "S5").cluster_view(tmp_path)
    one = attribute(one, known)
    assert one.src_owner and one.src_owner.text == "unknown, in network namespace cni-3"
    one = attribute(replace(one, netns=HOST), known)
    assert one.dst_owner and one.dst_owner.text == "node node-1"


def test_a_namespace_that_is_called_node_is_not_the_nodes(tmp_path: Path) -> None:
    loopback = Endpoints("127.0.0.1", 40000, "127.0.0.1", 80)
    netns = distinct_name("node", 9)
    one = packet([HookHop(0, netns, Hook.OUTPUT)], "127.0.0.1", 80)
    one = attribute(replace(one, endpoints=loopback, netns=netns), node("1.20.2-ipvs-nft", "S5").cluster_view(tmp_path))
    assert one.src_owner and one.src_owner.text == "unknown, in network namespace node (netns 9)"
    assert one.dst_owner and one.dst_owner.kind == "unknown", "it is not the node that answers there"


def test_without_the_api_owners_come_from_conntrack_and_namespaces(tmp_path: Path) -> None:
    one = packet([SocketHop(0, Netns("cni-7"), socket=Socket(1, "LISTEN", 7, "nginx"))], "172.30.1.1", 80)
    one = attribute(replace(one, netns=Netns("cni-3")), ClusterView())
    assert one.src_owner and one.dst_owner
    assert [one.src_owner.text, one.dst_owner.text] == [f"unknown, in network namespace cni-{n}" for n in (3, 7)]
    flow = Flow(one.endpoints, Endpoints("10.224.0.222", 3306, "192.168.56.1", 40000), "NEW", False, 0)
    one = attribute(replace(one, flow=flow), node("1.20.2-ipvs-nft", "S5").cluster_view(tmp_path, with_api=False))
    assert one.dst_owner and one.dst_owner.text == "unknown -> pod default/mysql-b"


def test_a_service_without_endpoints_in_the_nftables_mode(tmp_path: Path) -> None:
    """The element in netlink has no comment, and all Services share reject-chain: the API and the path show the Service."""
    one = node("1.36.2-nftables-nft", "S1")
    rules = next(r for name, r in one.rulesets() if name == "nft.json")
    path = (("filter-input", 1), ("nodeport-endpoints-check", 1))
    for with_api, element in ((True, ""), (False, ' comment "default/lonely-web:http"')):
        hits = [
            hit(rules, "kube-proxy", *path, element=f"tcp . 30584{element} : goto reject-chain"),
            hit(rules, "kube-proxy", *path, ("reject-chain", 1)),
        ]
        owners = MarkTracker(one.cluster_view(tmp_path, with_api)).table(hits)
        assert [o and o.text for o in owners] == ["Service default/lonely-web:http, NodePort 30584, no endpoints"] * 2


def test_addresses_of_kube_ipvs0_are_no_nodes(tmp_path: Path) -> None:
    """Without the API all that is known is that some Service has them."""
    local, cluster_ip = frozenset({"192.168.56.10", "172.30.33.7"}), "172.30.33.7"
    alone = ClusterView(local=local, ipvs=frozenset({cluster_ip}))
    assert end_of(cluster_ip, 3306, "tcp", alone).text == "unknown, a Service's, because it is an address of kube-ipvs0"
    assert end_of("192.168.56.10", 22, "tcp", alone).kind == "Node"
    with_api = node("1.20.2-ipvs-nft", "S5-nodeport").cluster_view(tmp_path)
    known = ClusterView(with_api.store, local=local, ipvs=frozenset({cluster_ip}))
    assert end_of(cluster_ip, 3306, "tcp", known).kind == "Service"


def test_a_request_of_the_node_from_a_services_address(tmp_path: Path) -> None:
    """In ipvs mode the node sends a request to a cluster IP from that cluster IP."""
    known = node("1.20.2-ipvs-nft", "S2-three").cluster_view(tmp_path)
    ends = Endpoints("172.30.253.123", 49534, "172.30.253.123", 8080)
    request = Packet(1, 0, HOST, "lo", "IPv4", "TCP", ends, hops=(HookHop(0, HOST, Hook.OUTPUT),))
    request = attribute(request, known)
    assert request.src_owner and request.src_owner.text == "node node-1, from 172.30.253.123"
    assert request.dst_owner and request.dst_owner.text == "Service default/http-proxy, cluster IP"


def test_ipvs_names_the_service_and_the_service_of_a_mark(tmp_path: Path) -> None:
    """Its rules match sets of all Services: the packet's own destination shows which one."""
    one = node("1.20.2-ipvs-nft", "S2-three")
    known = one.cluster_view(tmp_path)
    rules = next(r for name, r in one.rulesets() if name == "iptables-nft-save")
    before, after = Endpoints("192.168.56.1", 5, "172.30.253.123", 8080), Endpoints("192.168.56.1", 5, "10.244.0.11", 8080)
    masqueraded = Endpoints("10.244.0.1", 77, "10.244.0.11", 8080)

    def trace(*places: str, verdict: str) -> RuleTrace:
        path = tuple(RuleLocation(p.split()[0], int(p.split()[1])) for p in places)
        hits = []
        for n, place in enumerate(path):
            rule = rules.chain("ip", "nat", place.chain)[place.number - 1]
            hits.append(RuleHit(path[: n + 1], rule, verdict if n == len(path) - 1 else "JUMP", Evidence.OBSERVED))
        return RuleTrace(tuple(hits), ruleset=rules)

    marked = trace("PREROUTING 1", "KUBE-SERVICES 1", "KUBE-MARK-MASQ 1", verdict="MARK")
    out = trace("POSTROUTING 1", "KUBE-POSTROUTING 4", verdict="MASQUERADE")
    server = IpvsDecision("172.30.253.123", 8080, "tcp", "rr", real="10.244.0.11", real_port=8080, chosen="now")
    hops: list[Hop] = [
        ChainHop(0, HOST, Hook.PREROUTING, rule_trace=marked, table="", chain=""),
        IpvsNatHop(1, HOST, Hook.INPUT, decision=server, nat=Nat("DNAT", before, after)),
        ChainHop(2, HOST, Hook.POSTROUTING, rule_trace=out, table="", chain=""),
        NatHop(3, HOST, Hook.POSTROUTING, nat=Nat("MASQUERADE", after, masqueraded), rule_trace=out),
    ]
    packet = attribute(Packet(1, 0, HOST, "eth0", "IPv4", "TCP", before, hops=tuple(hops)), known)
    texts = [hop_fields.owner(h).text if owner_of(h) else "" for h in packet.hops]
    assert texts[1] == "Service default/http-proxy, cluster IP -> pod default/http-proxy-a (node-1)"
    assert texts[2] == "kube-proxy KUBE-POSTROUTING (mark 0x4000 set by KUBE-MARK-MASQ for default/http-proxy)"
