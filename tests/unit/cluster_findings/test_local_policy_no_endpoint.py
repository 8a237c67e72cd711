# SPDX-License-Identifier: Apache-2.0
"""A node without an endpoint of a Service with policy Local is asked; each case belongs to one finding alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.support.node_views import MILLI, POD_B, SECOND, packet, view
from tests.support.service_nodes import CART_B, CART_C, FakeEndpoints, history, trace
from tests.support.traced_clusters import NODES, TracedCluster, cluster_objects
from tracer.cluster_findings import cluster_context
from tracer.model.endpoints import Endpoints
from tracer.model.finding import Finding
from tracer.model.hop import Hop, IpvsDecision, IpvsRefusalHop, Socket, SocketHop, TableHop
from tracer.model.joined_packet import NodeView
from tracer.model.kube import Endpoint, Owner
from tracer.model.namespace_name import HOST
from tracer.model.netfilter import Hook, Verdict
from tracer.model.packet import Outcome
from tracer.util.evictions import evictions

CLIENT, PORT, BALANCER = "192.168.56.1", 30080, "203.0.113.7"
OWNER = Owner("Service", "shop", "cart", detail="NodePort 30080, no local endpoints (externalTrafficPolicy Local)")
DROPPED = TableHop(20, HOST, Hook.INPUT, table="filter", verdict=Verdict.DROP, owner=OWNER, rule_trace=trace(verdict="DROP"))
TO_SOCKET = SocketHop(9, HOST, socket=Socket(1, "LISTEN", 1, "x"))
OF_B_AND_C = (CART_B, CART_C)


def asked(time: int, node: str = "a", *hops: Hop, to: str = "", port: int = PORT, **values: Any) -> NodeView:
    """A SYN of the client to the NodePort, or to another address, that the node threw away."""
    ends = Endpoints(CLIENT, 40000 + time % 1000, to or NODES[node], port)
    fields: dict[str, Any] = {"tcp_flags": "SYN", "seq": time, "ident": time + 1} | values
    made = packet(time, ends, "drop", **fields)
    return NodeView(node, replace(made, hops=(made.hops[0], *(hops or (DROPPED,)))), 0, 10_000)


def cluster(nodes: str = "abc", ends: FakeEndpoints | None = None, local: bool = True, **spec: Any) -> TracedCluster:
    """A run with policy Local. ends: what the API has later."""
    made = TracedCluster(nodes)
    (service,) = (each for each in cluster_objects() if each["kind"] == "Service")
    policy = {"externalTrafficPolicy": "Local", "healthCheckNodePort": 32198} if local else {}
    balancer = {"loadBalancer": {"ingress": [{"ip": BALANCER}]}}
    made.nodes._store.load([{**service, "spec": service["spec"] | policy | spec, "status": balancer}])
    made.findings.context.endpoints = ends or FakeEndpoints(OF_B_AND_C)
    return made


def found(run: TracedCluster, views: Sequence[NodeView]) -> list[Finding]:
    return [each for each in run.settle(*views) if each.name in ("local_policy_no_endpoint", "nodeport_on_some_nodes")]


def answered(node: str, time: int) -> NodeView:
    inside, outside = Endpoints(POD_B, 8080, CLIENT, 40000), Endpoints(NODES[node], PORT, CLIENT, 40000)
    return view(node, time, "through", ends=inside, to=outside, tcp_flags="SYN ACK", seq=time, ident=0)


TWICE = (asked(MILLI), asked(2 * MILLI))


def test_a_node_without_an_endpoint_is_asked() -> None:
    (finding,) = found(cluster(), [answered("b", 0), *TWICE])
    assert (finding.name, finding.certain, finding.packets) == ("local_policy_no_endpoint", True, 1)
    assert finding.cause == (
        "Clients of Service shop/cart ask node a (192.168.60.11:30080), which has no endpoint of it, and with"
        " externalTrafficPolicy Local the node drops their packets: the ready endpoints are on nodes b, c."
    )
    texts = [proof.text for proof in finding.proofs]
    assert texts[1:] == [
        "node a threw away 2 first packets of connections to it",
        "Service shop/cart has externalTrafficPolicy Local, no endpoint on node a, and 10.244.2.8:8080 on node b,"
        " 10.244.3.9:8080 on node c",
        "node b answered 1 SYNs to its NodePort",
    ]
    assert "`curl -s http://localhost:32198/` on node a and on node b" in finding.check
    assert "its health check has to be port 32198" in finding.cure


def test_the_address_of_a_load_balancer_that_is_kept() -> None:
    views = [asked(MILLI, to=BALANCER, port=80), asked(2 * MILLI, to=BALANCER, port=80)]
    (finding,) = found(cluster(), views)
    assert finding.certain and "ask node a (203.0.113.7:80)" in finding.cause


def test_ipvs_refuses_because_there_is_no_real_server() -> None:
    owner = Owner("Service", "shop", "cart", detail="NodePort 30080")
    decision = IpvsDecision(NODES["a"], PORT, "tcp", "rr")
    hop = IpvsRefusalHop(20, HOST, Hook.INPUT, verdict=Verdict.REJECT, owner=owner, decision=decision)
    (finding,) = found(cluster(), [asked(MILLI, "a", hop), asked(2 * MILLI, "a", hop)])
    assert finding.certain


def test_a_rule_that_only_its_comment_names() -> None:
    hop = replace(DROPPED, owner=None, rule_trace=trace("-j DROP", "DROP", "shop/cart has no local endpoints"))
    (finding,) = found(cluster(), [asked(MILLI, "a", hop), asked(2 * MILLI, "a", hop)])
    assert finding.certain


def test_the_healthy_twin_answers() -> None:
    assert found(cluster(), [answered("b", 0), answered("c", 1)]) == []
    assert found(cluster(local=False), [*TWICE]) == [], "policy Cluster"


def test_one_packet_may_have_come_while_a_pod_moved() -> None:
    assert found(cluster(), [asked(MILLI)]) == []


@pytest.mark.parametrize(
    "here", [Endpoint("10.244.1.5", 8080, ("shop", "cart-x"), "a"), Endpoint("10.244.1.5", 8080, ("", ""), "a", ready=False)]
)
def test_a_node_with_an_endpoint_has_another_fault(here: Endpoint) -> None:
    """no_local_endpoints or endpoint_not_ready of that node say why; nodeport_on_some_nodes says that it is so."""
    ends = FakeEndpoints(OF_B_AND_C)
    ends.found = history([*OF_B_AND_C, here])
    assert found(cluster(ends=ends), [*TWICE]) == []
    (finding,) = found(cluster(ends=ends), [answered("b", 0), *TWICE])
    assert finding.name == "nodeport_on_some_nodes"


def test_without_ready_endpoints_elsewhere_nothing_is_wrong_with_the_choice() -> None:
    ends = FakeEndpoints(None)
    ends.found = history([Endpoint(*CART_B, ("shop", "cart-b"), "b", ready=False)])
    assert found(cluster(ends=ends), [*TWICE]) == []
    assert found(cluster(ends=FakeEndpoints(())), [*TWICE]) == []


def test_endpoints_of_unknown_nodes() -> None:
    ends = FakeEndpoints(None)
    ends.found = history([Endpoint(*CART_B, ("", ""), "")])
    assert found(cluster(ends=ends), [*TWICE]) == []


@pytest.mark.parametrize("ends", [FakeEndpoints(None), FakeEndpoints(OF_B_AND_C, asked=0)])
def test_endpoints_that_were_not_read_since_then(ends: FakeEndpoints) -> None:
    (finding,) = found(cluster(ends=ends), [*TWICE])
    assert not finding.certain and finding.cause.startswith("Perhaps clients") and "may have moved" in finding.cause


def test_a_pod_that_came_a_moment_later() -> None:
    ends = FakeEndpoints(None)
    run = cluster(ends=ends)
    run.show(*TWICE)
    run.reach(3 * SECOND)
    ends.found = history([*OF_B_AND_C, Endpoint("10.244.1.5", 8080, ("shop", "cart-x"), "a")])
    assert found(run, []) == [] and run.reach(60 * SECOND) == [] and run.findings.all == []


def test_a_rule_that_is_not_known() -> None:
    unknown = TableHop(20, HOST, Hook.INPUT, table="filter", verdict=Verdict.DROP)
    (finding,) = found(cluster(), [asked(MILLI, "a", unknown), asked(2 * MILLI, "a", unknown)])
    assert not finding.certain and "The rule that threw the packet away is not known" in finding.cause


def test_a_rule_of_somebody_else_belongs_to_the_other_finding() -> None:
    firewall = replace(DROPPED, owner=Owner("administrator"))
    views = [asked(MILLI, "a", firewall), asked(2 * MILLI, "a", firewall)]
    assert found(cluster(), views) == []
    (finding,) = found(cluster(), [answered("b", 0), *views])
    assert finding.name == "nodeport_on_some_nodes"


@pytest.mark.parametrize(
    "views",
    [
        [replace(each, packet=replace(each.packet, complete=False)) for each in TWICE],
        [replace(each, packet=replace(each.packet, tcp_flags="ACK")) for each in TWICE],
        [replace(each, packet=replace(each.packet, outcome=Outcome.DELIVERED)) for each in TWICE],
        [asked(MILLI, port=30081), asked(2 * MILLI, port=30081)],  # of no Service
        [asked(MILLI, to="172.30.0.10", port=80), asked(2 * MILLI, to="172.30.0.10", port=80)],  # the cluster IP
        [asked(MILLI, "a", TO_SOCKET), asked(2 * MILLI, "a", TO_SOCKET)],
    ],
)
def test_what_shows_nothing(views: list[NodeView]) -> None:
    assert found(cluster(), views) == []


def test_datagrams_count_too() -> None:
    ports = [{"port": 80, "targetPort": 8080, "nodePort": PORT, "protocol": "UDP"}]
    run = cluster(ports=ports)
    ends = run.findings.context.endpoints
    assert isinstance(ends, FakeEndpoints) and ends.found
    ends.found = ends.found._replace(ends={("", "udp"): ends.found.ends["", "tcp"]})
    views = [asked(n * MILLI, protocol="UDP", tcp_flags="", seq=0, ident=n) for n in (1, 2)]
    (finding,) = found(run, views)
    assert finding.certain


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_context, "SERVICES_KEPT", 1)
    evictions.read()
    ends = FakeEndpoints((CART_C,))
    found(cluster(ends=ends), [asked(MILLI), asked(2 * MILLI, "b"), asked(3 * MILLI)])
    assert evictions.read()["Services without a local endpoint"] == 2
