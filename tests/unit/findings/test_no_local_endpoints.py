# SPDX-License-Identifier: Apache-2.0
"""No local endpoints although the pods run here: kube-proxy uses another node name. Pods that run elsewhere are no finding."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support import findings as f
from tests.support.nodes import node
from tracer.kube.catalog import ClusterView
from tracer.kube.cni_cache import CniCache
from tracer.kube.store import ObjectStore
from tracer.model.endpoints import Endpoints
from tracer.model.finding import Finding
from tracer.model.hop import Drop, DropHop, Hop
from tracer.model.kube import ObjectReference
from tracer.model.namespace_name import HOST
from tracer.model.netfilter import Hook, Verdict
from tracer.model.packet import Packet
from tracer.model.rule import Ruleset
from tracer.node.kube_proxy import KubeProxy

LEGACY, NEWER = "1.20.2-iptables-legacy", "1.36.2-iptables-legacy"
FULL = "ip-10-188-166-140.ec2.internal"
BARE = KubeProxy(77, (("ip-10-188-166-140", "the host name, for /etc/kube-proxy.conf has no hostnameOverride"),))
RIGHT = KubeProxy(77, ((FULL, "hostnameOverride in /etc/kube-proxy.conf"),))
ENDS = Endpoints(f.CLIENT, 40000, "192.168.56.10", 30420)


def here(mode: str, node_name: str = FULL) -> ClusterView:
    """The objects of the scenario, with this node registered by its full name and its pods on it."""
    objects = json.loads(json.dumps(node(mode, "S4").objects).replace('"node-1"', f'"{FULL}"'))
    moved = [
        json.loads(json.dumps(o).replace('"node-2"', f'"{node_name}"')) if o["metadata"].get("namespace") == "2048-game" else o
        for o in objects
    ]
    store = ObjectStore(FULL)
    store.load(moved)
    return ClusterView(store, CniCache(()), frozenset({"192.168.56.10"}))


def marked_and_dropped() -> Packet:
    """1.20: KUBE-XLB's last rule marks the packet, KUBE-FIREWALL drops it."""
    rules = node(LEGACY, "S4").iptables()
    xlb = ("KUBE-XLB-FGSWHB27NEIMUT22", "has no local endpoints")
    jumps = [("PREROUTING", "KUBE-SERVICES"), ("KUBE-SERVICES", "KUBE-NODEPORTS"), ("KUBE-NODEPORTS", "KUBE-XLB")]
    mark = [f.hit(rules, "nat", *jumps, xlb, verdict="JUMP"), f.hit(rules, "nat", *jumps, xlb, ("KUBE-MARK-DROP", "MARK"))]
    drop = f.hit(rules, "filter", ("INPUT", "KUBE-FIREWALL"), ("KUBE-FIREWALL", "0x8000"))
    return dropped(rules, f.table(rules, Hook.PREROUTING, "nat", *mark, f.policy("PREROUTING")),
                   f.table(rules, Hook.INPUT, "filter", drop, verdict=Verdict.DROP))  # fmt: skip


def dropped_at_once() -> Packet:
    """1.26 and later: a DROP of its own in the filter table."""
    rules = node(NEWER, "S4").iptables()
    drop = f.hit(rules, "filter", ("INPUT", "KUBE-EXTERNAL-SERVICES"), ("KUBE-EXTERNAL-SERVICES", "has no local endpoints"))
    return dropped(rules, f.table(rules, Hook.INPUT, "filter", drop, verdict=Verdict.DROP))


def dropped(rules: Ruleset, *hops: Hop) -> Packet:
    return f.packet([*hops, DropHop(9, HOST, drop=Drop("NETFILTER_DROP", "nf_hook_slow"))], ENDS)


def found(made: Packet, cluster: ClusterView, proxy: KubeProxy | None) -> list[Finding]:
    return f.findings_of([made], cluster, f.FakeNode(proxy=proxy))[1]


@pytest.mark.parametrize(("mode", "made"), [(LEGACY, marked_and_dropped()), (NEWER, dropped_at_once())])
def test_kube_proxy_uses_the_bare_host_name(mode: str, made: Packet) -> None:
    (finding,) = found(made, here(mode), BARE)
    assert finding.name == "no_local_endpoints" and finding.certain
    assert finding.subject == ObjectReference("Service", "2048-game", "service-2048")
    assert finding.cause == (
        "Service 2048-game/service-2048 has externalTrafficPolicy Local and is dropped on this node because it has no"
        " local endpoints,"
        " although 2 of its pods run here: kube-proxy uses the node name ip-10-188-166-140 (the host name, for"
        " /etc/kube-proxy.conf"
        f" has no hostnameOverride) but the endpoints have {FULL}, so none of them is local for it."
    )
    assert f"Set hostnameOverride: {FULL}" in finding.cure
    assert "has no local endpoints" in f.proofs(finding, "rule")[0]
    assert f"this node is registered as {FULL} (Kubernetes API)" in f.proofs(finding, "object")
    assert "pod 2048-game/app-2048-x" in f.proofs(finding, "object")[0]


BY_FLAG = KubeProxy(77, ((BARE.names[0][0], "--hostname-override"),))
BY_HOST = KubeProxy(77, ((BARE.names[0][0], "the host name"),))
UNKNOWN = KubeProxy(77, (("x", "not recorded"),))


@pytest.mark.parametrize("proxy", [BY_FLAG, BY_HOST])
def test_no_configuration_file_is_named_if_kube_proxy_has_none(proxy: KubeProxy) -> None:
    (finding,) = found(marked_and_dropped(), here(LEGACY), proxy)
    assert finding.cure.startswith(f"Start kube-proxy with --hostname-override={FULL}")
    assert "file" not in finding.cure + finding.check


@pytest.mark.parametrize("proxy", [None, UNKNOWN])
def test_flag_and_file_are_named_if_it_is_unknown_which_counts(proxy: KubeProxy | None) -> None:
    (finding,) = found(marked_and_dropped(), here(LEGACY), proxy)
    assert f"--hostname-override={FULL}; where it is started with --config, set hostnameOverride: {FULL}" in finding.cure


def test_the_check_works_with_every_version_of_endpoint_slices() -> None:
    """Those of v1beta1, which Kubernetes 1.20 serves, have no nodeName; Endpoints have it in every version."""
    (finding,) = found(marked_and_dropped(), here(LEGACY), BARE)
    assert "`kubectl get endpoints -n 2048-game service-2048 -o yaml | grep nodeName`" in finding.check


def test_a_flag_that_kube_proxy_may_ignore() -> None:
    proxy = KubeProxy(
        77, (*BARE.names, (FULL, "--hostname-override, which is not heeded by every version when --config is given"))
    )
    (finding,) = found(marked_and_dropped(), here(LEGACY), proxy)
    assert finding.certain and "kube-proxy uses the node name ip-10-188-166-140" in finding.cause


@pytest.mark.parametrize("proxy", [RIGHT, None, KubeProxy(77, ())])
def test_without_another_name_it_is_only_likely(proxy: KubeProxy | None) -> None:
    """Endpoints that were added a moment ago look the same."""
    (finding,) = found(marked_and_dropped(), here(LEGACY), proxy)
    assert not finding.certain and "perhaps kube-proxy uses another node name" in finding.cause


@pytest.mark.parametrize("proxy", [BARE, RIGHT, None])
def test_pods_that_run_elsewhere_are_no_finding(proxy: KubeProxy | None, tmp_path: Path) -> None:
    """The policy works as intended."""
    assert not found(marked_and_dropped(), node(LEGACY, "S4").cluster_view(tmp_path), proxy)
    assert not found(marked_and_dropped(), node(LEGACY, "S4").cluster_view(tmp_path, with_api=False), proxy)


def test_another_drop_is_no_finding() -> None:
    rules = node(LEGACY, "S4").iptables()
    drop = f.hit(rules, "filter", ("INPUT", "KUBE-FIREWALL"), ("KUBE-FIREWALL", "0x8000"))
    assert not found(dropped(rules, f.table(rules, Hook.INPUT, "filter", drop, verdict=Verdict.DROP)), here(LEGACY), BARE)


def test_ipvs_refuses_a_request_without_local_endpoint() -> None:
    (finding,) = found(f.ipvs("192.168.56.10", 30420), here("1.20.2-ipvs-nft"), BARE)
    assert finding.name == "no_local_endpoints" and finding.certain
    assert (
        "externalTrafficPolicy Local and is refused on this node because it has no local endpoints, although 2" in finding.cause
    )
    assert "IPVS virtual server tcp 192.168.56.10:30420 has no real server" in f.proofs(finding, "server")[0]
    assert not found(f.ipvs("172.30.20.48", 80), here("1.20.2-ipvs-nft"), BARE), "the policy is for NodePorts only"


def test_ipvs_without_the_policy(tmp_path: Path) -> None:
    cluster = node("1.20.2-ipvs-nft", "S1").cluster_view(tmp_path)
    assert not found(f.ipvs("192.168.56.10", 30584), cluster, BARE), "the Service has no pods, and its policy is Cluster"
