# SPDX-License-Identifier: Apache-2.0
"""A mesh's rule in a pod redirects a connection to a port without a listener."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "vagrant"))

from incidents import objects
from tests.support import findings as f
from tracer.model.endpoints import Endpoints
from tracer.model.evidence import Evidence
from tracer.model.finding import Finding
from tracer.model.hop import Drop, DropHop, Hop, Nat, NatHop, Socket, SocketHop, TableHop
from tracer.model.namespace_name import HOST, Netns
from tracer.model.netfilter import Hook, Verdict
from tracer.model.packet import Packet
from tracer.model.rule import RuleHit, RuleLocation, RuleTrace
from tracer.rules import save_parser

POD_A, A, B = Netns("pod-a"), "10.244.0.11", "10.244.0.12"
ISTIO = "-A ISTIO_IN_REDIRECT -p tcp -j REDIRECT --to-ports 15006"
LINKERD = '-A PROXY_INIT_REDIRECT -p tcp -m comment --comment "proxy-init/redirect-all-incoming" -j REDIRECT --to-ports 4143'
MINE = "-A MINE -p tcp -j REDIRECT --to-ports 15006"
GONE = DropHop(9, POD_A, drop=Drop("NO_SOCKET", "tcp_v4_rcv"))
IN, OUT = Endpoints(f.CLIENT, 40000, A, 8080), Endpoints(A, 40000, B, 8080)


def redirected(line: str, hook: Hook = Hook.PREROUTING, ends: Endpoints = IN, netns: Netns = POD_A) -> list[Hop]:
    rules = save_parser.parse(f"*nat\n{line}\n")
    (rule,) = (r for chain in rules.chains.values() for r in chain)
    hit = RuleHit((RuleLocation(rule.chain, 1),), rule, "REDIRECT", Evidence.OBSERVED)
    trace, port = RuleTrace((hit,), ruleset=rules), int(line.split()[-1])
    to = replace(ends, dst="127.0.0.1" if hook is Hook.OUTPUT else ends.dst, dport=port)
    return [
        TableHop(1, netns, hook, table="nat", verdict=Verdict.ACCEPT, rule_trace=trace),
        NatHop(2, netns, hook, nat=Nat("DNAT", ends, to)),
    ]


def found(*hops: Hop, ends: Endpoints = IN) -> list[Finding]:
    known = f.view(
        [objects.node("node-1", "192.168.56.10", "10.244.0.0/24"), objects.pod("shop/orders", A, "node-1", 8080),
         objects.pod("shop/cart", B, "node-1", 8080)], "192.168.56.10",
    )  # fmt: skip
    made: Packet = f.packet(hops, ends)
    return f.findings_of([made], known, f.FakeNode())[1]


@pytest.mark.parametrize(
    ("line", "mesh", "port", "container"),
    [(ISTIO, "Istio", 15006, "istio-proxy"), (LINKERD, "Linkerd", 4143, "linkerd-proxy"),
     ("-A CONSUL_PROXY_IN_REDIRECT -p tcp -j REDIRECT --to-ports 20000", "Consul", 20000, "consul-dataplane")],
)  # fmt: skip
def test_requests_to_a_pod_without_its_proxy(line: str, mesh: str, port: int, container: str) -> None:
    (finding,) = found(*redirected(line), GONE)
    assert finding.name == "mesh_redirect" and finding.certain
    assert finding.cause == (
        f"{mesh}'s rule in pod shop/orders (network namespace pod-a) redirects connections to the mesh's proxy at port {port},"
        " where nothing listens: the connection to 10.244.0.11:8080 was refused there."
    )
    assert f"`ss -lntp 'sport = :{port}'` shows no listener" in finding.check and container in finding.cure
    assert line.split(" ", 2)[2] in f.proofs(finding, "rule")[0]


def test_a_pods_own_request_is_of_the_sender() -> None:
    (finding,) = found(*redirected("-A ISTIO_REDIRECT -p tcp -j REDIRECT --to-ports 15001", Hook.OUTPUT, OUT), GONE, ends=OUT)
    assert "Istio's rule in pod shop/orders (network namespace pod-a)" in finding.cause
    assert "the connection to 10.244.0.12:8080 was refused there" in finding.cause


def test_an_administrators_redirect_is_no_mesh() -> None:
    assert found(*redirected(MINE), GONE) == []


def test_a_proxy_that_listens_is_no_finding() -> None:
    assert found(*redirected(ISTIO), SocketHop(9, POD_A, socket=Socket(7, "LISTEN", 77, "envoy"))) == []


def test_a_rule_on_the_node_is_no_finding() -> None:
    gone = DropHop(9, HOST, drop=Drop("NO_SOCKET", "tcp_v4_rcv"))
    assert found(*redirected(ISTIO, netns=HOST), gone) == []


def test_a_refusal_in_another_namespace_is_no_finding() -> None:
    assert found(*redirected(ISTIO), DropHop(9, Netns("pod-b"), drop=Drop("NO_SOCKET", "tcp_v4_rcv"))) == []
