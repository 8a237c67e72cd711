# SPDX-License-Identifier: Apache-2.0
"""Rules of one node that are behind the API: gone endpoints, endpoints that are new, Services that are new."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "vagrant"))

from incidents import objects
from tests.support import findings as f
from tests.support.nodes import node
from tracer.findings import Findings
from tracer.findings.context import FindingContext
from tracer.kube.attribution import attribute
from tracer.kube.catalog import ClusterView
from tracer.kube.cni_cache import CniCache
from tracer.kube.store import ObjectStore
from tracer.model.endpoints import Endpoints
from tracer.model.finding import Finding
from tracer.model.hop import ChainHop, Drop, DropHop, Hop, NatHop
from tracer.model.kube import ObjectReference
from tracer.model.namespace_name import HOST
from tracer.model.netfilter import Hook, Verdict
from tracer.model.packet import Packet
from tracer.model.rule import RuleTrace
from tracer.node.proxy_state import ProxyState

MODE, NODE, POD, SECOND = "1.20.2-iptables-legacy", "192.168.56.10", "10.244.0.11", f.SECOND
NOW = int(time.time())
NAME, PORT = "default/http-proxy", 30285
CHECK = "`kubectl get endpointslices -n default -l kubernetes.io/service-name=http-proxy -o yaml`"
GONE, RUNS, STOPPED = ProxyState(), ProxyState((77,)), ProxyState((), (77,))


def api(address: str = "10.244.0.12", ago: int = 600, **more: Any) -> list[dict[str, Any]]:
    """http-proxy with one endpoint, and another Service. ago: age of the objects. more: as fields of the Service's metadata."""
    found = [
        objects.node("node-1", NODE, "10.244.0.0/24"), objects.service(NAME, "172.30.253.123", 8080, PORT),
        objects.endpoints(NAME, [("http-proxy-b", address, "node-1")] if address else [], 8080),
        objects.service("default/other", "172.30.9.9", 80), objects.endpoints("default/other", [("x", "10.9.9.9", "n")], 80),
    ]  # fmt: skip
    found = [objects.changed(each, NOW - ago) for each in found]
    found[1]["metadata"] |= more
    return found


def view(bodies: list[dict[str, Any]], followed: bool = True) -> ClusterView:
    """The objects, as the API lists them, or as a file has them."""
    store = ObjectStore("node-1")
    if followed:
        for kind in sorted({b["kind"] for b in bodies}):
            store.replace(kind, [b for b in bodies if b["kind"] == kind])
    else:
        store.load(bodies)
    return ClusterView(store, CniCache(()), frozenset({NODE}))


def ends(address: str = NODE, port: int = PORT) -> Endpoints:
    return Endpoints(f.CLIENT, 40000, address, port)


def at(packet: Packet, seconds: int = 0) -> Packet:
    return replace(packet, time=(NOW + seconds) * SECOND)


def sent(seconds: int = 0, **more: Any) -> Packet:
    """A SYN that the rules have sent to 10.244.0.11. more: fields of the translation."""
    rules = node(MODE, "S2-one").iptables()
    hit = f.hit(
        rules, "nat", ("PREROUTING", "KUBE-SERVICES"), ("KUBE-SERVICES", "KUBE-NODEPORTS"), ("KUBE-NODEPORTS", "KUBE-SVC"),
        ("KUBE-SVC-5DZI2HW7VHZLUOJ5", "KUBE-SEP"), ("KUBE-SEP-66PQAUDBO7BH47NT", "DNAT"),
    )  # fmt: skip
    hop = f.nat(rules, Hook.PREROUTING, "DNAT", ends(), Endpoints(f.CLIENT, 40000, POD, 8080), hit)
    assert isinstance(hop, NatHop)
    return at(f.packet([replace(hop, **more)], ends()), seconds)


def refused() -> Packet:
    """A SYN to lonely-web, which has no endpoints for the rules."""
    rules = node(MODE, "S1").iptables()
    hit = f.hit(rules, "filter", ("INPUT", "EXTERNAL-SERVICES"), ("KUBE-EXTERNAL-SERVICES", "30584"), verdict="REJECT")
    hop = f.table(rules, Hook.INPUT, "filter", hit, verdict=Verdict.REJECT, reject="icmp-port-unreachable")
    return at(f.packet([hop], ends(port=30584)))


def lonely(address: str = "10.244.0.77") -> list[dict[str, Any]]:
    found = [
        objects.node("node-1", NODE, "10.244.0.0/24"), objects.service("default/lonely-web", "172.30.10.84", 80, 30584, "http"),
        objects.endpoints("default/lonely-web", [("web-1", address, "node-1")], 80, "http"),
    ]  # fmt: skip
    return [objects.changed(each, NOW - 600) for each in found]


def untranslated(mode: str = MODE, port: int = 30999, address: str = NODE) -> Packet:
    """A SYN to a Service for which no rule acted, and that the node refused."""
    hop: Hop
    if "nftables" in mode:
        rules = next(rules for name, rules in node(mode, "S2-three").rulesets() if name.startswith("nft.json"))
        hop = ChainHop(0, HOST, Hook.PREROUTING, table="ip kube-proxy", chain="nat-prerouting", verdict=Verdict.ACCEPT,
                       rule_trace=RuleTrace(ruleset=rules))  # fmt: skip
    else:
        hop = f.table(node(mode, "S2-one").iptables(), Hook.PREROUTING, "nat", f.policy("PREROUTING"))
    return at(f.packet([hop, DropHop(9, HOST, drop=Drop("NO_SOCKET", "tcp_v4_rcv"))], ends(address, port)))


def new_service(ago: int = 600, **more: Any) -> list[dict[str, Any]]:
    found = [
        *api(POD), objects.service("shop/cart", "172.30.1.77", 80, 30999, "web"),
        objects.endpoints("shop/cart", [("cart-1", "10.244.0.13", "node-1")], 8080, "web"),
    ]  # fmt: skip
    found[-2:] = [objects.changed(each, NOW - ago) for each in found[-2:]]
    found[-2]["metadata"] |= more
    return found


def found(packets: list[Packet], cluster: ClusterView, state: ProxyState | None = GONE) -> list[Finding]:
    findings = Findings(FindingContext(cluster, f.FakeNode(proxy_processes=state)))
    for each in packets:
        findings.look(attribute(each, cluster))
    return [finding for finding in findings.all if finding.name == "rules_behind_objects"]


def test_an_endpoint_that_is_gone() -> None:
    (finding,) = found([sent()], view(api()))
    assert finding.certain and finding.subject == ObjectReference("Service", "default", "http-proxy")
    assert finding.cause == (
        "kube-proxy's rules on this node are behind the API: rules lead to 10.244.0.11:8080 for Service default/http-proxy,"
        " which the API does not have among its endpoints; so it has been for 10 min. No process of kube-proxy runs on the"
        " node."
    )
    assert f.proofs(finding, "object") == ["the endpoints of default/http-proxy are 10.244.0.12:8080 (Kubernetes API)"]
    assert "DNAT" in f.proofs(finding, "rule")[0]
    assert f.proofs(finding, "process") == ["no process has kube-proxy's name (/proc)"]
    assert "127.0.0.1:10256/healthz" in finding.check and CHECK in finding.check
    assert finding.cure.startswith("Start kube-proxy on this node.")


def test_a_service_that_has_lost_all_endpoints() -> None:
    (finding,) = found([sent()], view(api("")))
    assert finding.certain
    assert f.proofs(finding, "object") == ["the endpoints of default/http-proxy are none (Kubernetes API)"]


def test_endpoints_that_are_new_for_a_service_without_any() -> None:
    (finding,) = found([refused()], view(lonely()))
    assert finding.certain and "REJECT" in f.proofs(finding, "rule")[0]
    assert (
        "no rule leads to an endpoint of Service default/lonely-web:http, which has 1 ready endpoint; so it has been for 10 min"
        in finding.cause
    )


@pytest.mark.parametrize("mode", [MODE, "1.36.2-iptables-nft", "1.36.2-nftables-nft"])
@pytest.mark.parametrize(("address", "port"), [(NODE, 30999), ("172.30.1.77", 80)], ids=["NodePort", "cluster IP"])
def test_a_service_that_is_new(mode: str, address: str, port: int) -> None:
    (finding,) = found([untranslated(mode, port, address)], view(new_service()))
    assert finding.certain and "no rule leads to an endpoint of Service shop/cart:web, which has 1 ready" in finding.cause
    assert [p.what for p in finding.proofs] == ["packet", "object", "process"]


def test_ipvs_with_a_real_server_that_is_gone() -> None:
    (finding,) = found([at(f.ipvs(NODE, PORT, POD))], view(api()))
    assert finding.certain and f.proofs(finding, "server")
    assert found([at(f.ipvs(NODE, PORT, POD, "earlier"))], view(api())) == []


def test_ipvs_without_a_real_server() -> None:
    (finding,) = found([at(f.ipvs(NODE, PORT))], view(api()))
    assert finding.certain and "no rule leads to an endpoint of Service default/http-proxy" in finding.cause
    local = api()
    local[1]["spec"]["externalTrafficPolicy"] = "Local"
    assert found([at(f.ipvs(NODE, PORT))], view(local)) == [], "none of its endpoints is here, perhaps"


def test_it_is_stopped() -> None:
    (finding,) = found([sent()], view(api()), STOPPED)
    assert finding.certain and finding.cause.endswith("kube-proxy (pid 77) is stopped by a signal.")
    assert finding.cure.startswith("Let it go on: `kill -CONT 77`.")


def test_it_runs_or_is_not_known() -> None:
    for state, words in ((RUNS, "kube-proxy (pid 77) runs; why its rules are not newer is not known."),
                         (None, "Whether kube-proxy runs cannot be seen from here.")):  # fmt: skip
        (finding,) = found([sent()], view(api()), state)
        assert not finding.certain and finding.cause.endswith(words) and "are perhaps behind" in finding.cause


def test_a_file_may_be_older_than_the_rules() -> None:
    """An endpoint has moved since it was written, kube-proxy wrote that, and ended."""
    for state in (GONE, STOPPED):
        (finding,) = found([sent()], view(api(), followed=False), state)
        assert not finding.certain and "are perhaps behind" in finding.cause
        assert finding.cause.endswith(" The objects come from a file, which may be older than the rules.")


def test_another_program_holds_the_lock() -> None:
    (finding,) = found([sent()], view(api()), ProxyState((77,), (), 99))
    assert "process 99 holds the lock of iptables, /run/xtables.lock (/proc/locks)" in f.proofs(finding, "process")


def test_it_takes_a_moment() -> None:
    """kube-proxy writes a second after the API has changed. Its process may have been restarted meanwhile."""
    assert found([sent()], view(api(ago=5))) == []
    assert found([sent()], view(api(ago=59))) == [] != found([sent()], view(api(ago=61)))


def test_what_the_run_sees_itself_is_certain_though_it_runs() -> None:
    """Objects of a file may be older than the rules; objects of the API that is watched are not."""
    packets = [sent(0), sent(20), sent(31)]
    (finding,) = found(packets, view(api()), RUNS)
    assert finding.certain and finding.packets == 3
    (finding,) = found(packets, view(api(), followed=False), RUNS)
    assert not finding.certain
    assert not found(packets[:2], view(api()), RUNS)[0].certain


def test_objects_without_times() -> None:
    """kubectl leaves managedFields out; then only a run that follows the API knows for how long it has been so."""
    bare = api()
    for each in bare:
        del each["metadata"]["managedFields"]
    assert found([sent(0), sent(40)], view(bare, followed=False)) == []
    (finding,) = found([sent(0), sent(40)], view(bare))
    assert finding.certain and finding.packets == 1


def test_a_change_during_the_run_begins_anew() -> None:
    cluster = view(api())
    findings = Findings(FindingContext(cluster, f.FakeNode(proxy_processes=RUNS)))
    for seconds, address in ((0, "10.244.0.12"), (31, "10.244.0.13"), (40, "10.244.0.13")):
        cluster.store.replace("EndpointSlice", [b for b in api(address, ago=0) if b["kind"] == "EndpointSlice"])
        findings.look(attribute(sent(seconds), cluster))
    assert not [x for x in findings.all if x.name == "rules_behind_objects" and x.certain]


@pytest.mark.parametrize(
    ("packet", "bodies"),
    [
        (sent(), api(POD)),
        (sent(), api(POD, ago=6000)),
        (sent(from_conntrack=True), api()),
        (replace(sent(), complete=False), api()),
        (sent(), api(labels={"service.kubernetes.io/service-proxy-name": "other"})),
        (refused(), lonely("")[:2]),
        (untranslated(), new_service(labels={"service.kubernetes.io/headless": ""})),
        (untranslated(port=PORT), new_service()),
        (untranslated(port=31111), new_service()),
        (untranslated("1.36.2-nftables-nft", PORT), new_service()),
    ],
    ids=["it is one", "for long", "conntrack repeats it", "a part is lost", "another proxy", "it has no endpoints",
         "headless", "it has rules", "no Service", "it has chains"],
)  # fmt: skip
def test_no_finding(packet: Packet, bodies: list[dict[str, Any]]) -> None:
    assert found([packet], view(bodies)) == []


def test_without_the_right_to_read_endpoints_nothing_is_said() -> None:
    assert found([sent()], view([b for b in api() if b["kind"] != "EndpointSlice"])) == []


def test_a_name_that_a_shell_would_run_is_in_no_command() -> None:
    bodies = new_service()
    for each in bodies[-2:]:
        each["metadata"]["namespace"] = "$(reboot)"
    (finding,) = found([untranslated()], view(bodies))
    assert "reboot" not in finding.check and "Service $(reboot)/cart:web" in finding.cause


def test_an_endpoint_that_is_not_ready_is_one() -> None:
    bodies = api(POD)
    bodies[2]["endpoints"][0]["conditions"] = {"ready": False, "terminating": True}
    assert found([sent()], view(bodies)) == []
