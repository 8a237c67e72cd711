# SPDX-License-Identifier: Apache-2.0
"""A port that both a pod's hostPort and a Service use: the order of the rules decides which of them gets it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support import audits
from tests.support.nodes import MODES, node
from tracer.audit.hostport_takes_service import check
from tracer.kube.catalog import ClusterView
from tracer.kube.store import ObjectStore
from tracer.model.kube import ServicePort
from tracer.rules import save_parser

RULESETS = Path(__file__).resolve().parents[3] / "vagrant/incidents/rulesets"
SETS = """create KUBE-CLUSTER-IP hash:ip,port
add KUBE-CLUSTER-IP 172.30.0.1,tcp:443
add KUBE-CLUSTER-IP 172.30.33.7,tcp:3306
"""
SERVERS = """-A -t 172.30.33.7:3306 -s rr
-a -t 172.30.33.7:3306 -r 10.244.0.11:3306 -m -w 1
"""


def service() -> ClusterView:
    store = ObjectStore("node-1")
    store.load([{
        "kind": "Service", "metadata": {"namespace": "default", "name": "mysql-np"},
        "spec": {"clusterIPs": ["172.30.33.7"], "ports": [{"name": "mysql", "port": 3306, "protocol": "TCP"}]},
    }])  # fmt: skip
    assert store.by_address.values() == [(ServicePort("default", "mysql-np", "mysql", "tcp", 3306, 0, 0, ("172.30.33.7",)),
                                          "cluster IP")]  # fmt: skip
    return ClusterView(store)


def causes(name: str, cluster: ClusterView | None = None) -> list[str]:
    sets, servers = (SETS, SERVERS) if "ipvs" in name else ("", "")
    return [f.cause for f in check(audits.of_text((RULESETS / f"{name}.rules").read_text(), cluster, sets=sets, ipvs=servers))]


@pytest.mark.parametrize("mode", [m for m in MODES if "ipvs" not in m])
def test_a_nodeport_on_a_hostport(mode: str, tmp_path: Path) -> None:
    by_port = {f.key[0]: f for f in check(audits.state(node(mode, "S5-nodeport"), tmp_path))}
    assert set(by_port) == {3306, 30306}
    cause = by_port[30306].cause
    assert "hostPort of pod default/web-hp and NodePort of Service default/same-port:tcp-a" in cause
    winner = "registered last" if "nftables" in mode else "the Service gets every request, for kube-proxy's rule comes first"
    assert winner in cause


def test_portmaps_jump_in_front(tmp_path: Path) -> None:
    (cause,) = causes("portmap-first")
    assert cause == (
        "tcp 3306 of this node is both hostPort of the pod at 10.224.0.222 and NodePort of Service default/mysql-np:mysql:"
        " the pod gets every request, for portmap's rule comes first, and the Service gets none."
    )


def test_a_jump_without_a_local_address_match_takes_the_port_of_every_machine() -> None:
    elsewhere, same = causes("portmap-anywhere", service())
    assert "takes what is meant for Service default/mysql-np:mysql: portmap's jump comes first and does not ask" in elsewhere
    assert "NodePort of Service default/mysql-np:mysql" in same
    assert "takes what is meant for any other machine" in causes("portmap-anywhere")[0]


def test_ipvs_makes_every_cluster_ip_local() -> None:
    (cause,) = causes("ipvs-portmap-first", service())
    assert "every cluster IP is local to this node by kube-ipvs0, and portmap's jump comes first" in cause
    assert "every connection to tcp 3306 at an address that is local to this node" in cause


@pytest.mark.parametrize("name", ["portmap", "ipvs-portmap"])
def test_healthy_twins(name: str) -> None:
    assert causes(name, service() if name.startswith("ipvs") else None) == []


@pytest.mark.parametrize("mode", ["1.36.2-nftables-nft", "1.36.2-iptables-nft"])
def test_portmap_in_another_back_end(mode: str, tmp_path: Path) -> None:
    """kube-proxy in nftables or in iptables-nft, portmap in legacy tables: which was registered last is not known."""
    one = audits.state(node(mode, "S5-nodeport"), tmp_path)
    nft = one.installed.nft
    assert nft
    chains = {k: rules for k, rules in nft.ruleset.chains.items() if k[1] != "cni_hostport"}
    for key, rules in chains.items():
        chains[key] = tuple(r for r in rules if "CNI-" not in r.target + r.chain)
    bases = tuple(b for b in nft.bases if b.key[1] != "cni_hostport")
    portmap = save_parser.parse(
        "*nat\n:PREROUTING ACCEPT [0:0]\n:OUTPUT ACCEPT [0:0]\n:CNI-HOSTPORT-DNAT - [0:0]\n"
        ":CNI-DN-1b2d78b7fd62596952a9c - [0:0]\n"
        "-A PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT\n"
        "-A OUTPUT -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT\n"
        "-A CNI-HOSTPORT-DNAT -p tcp -m multiport --dports 30306 -j CNI-DN-1b2d78b7fd62596952a9c\n"
        "-A CNI-DN-1b2d78b7fd62596952a9c -p tcp -m tcp --dport 30306 -j DNAT --to-destination 10.224.0.222:80\nCOMMIT\n"
    )
    listed = replace(nft, ruleset=replace(nft.ruleset, chains=chains), bases=bases)
    (finding,) = check(replace(one, installed=replace(one.installed, legacy=portmap, nft=listed)))
    assert finding.certain and "all requests that come in go to one of them, and so do the node's own: the one" in finding.cause
    assert "every request" not in finding.cause and "0.7.5" not in finding.cure
    assert len(finding.proofs) == 6, "the rules that decide in either order, in PREROUTING and OUTPUT"
