# SPDX-License-Identifier: Apache-2.0
"""A NodePort at an address at which kube-proxy's nftables mode does not answer it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support import findings as f
from tests.support.nodes import node
from tracer.kube.catalog import ClusterView
from tracer.model.endpoints import Endpoints
from tracer.model.finding import Finding
from tracer.model.hop import ChainHop, Drop, DropHop, Hop, Nat, NatHop
from tracer.model.kube import ObjectReference
from tracer.model.namespace_name import HOST
from tracer.model.netfilter import Hook, Verdict
from tracer.model.packet import Packet
from tracer.model.rule import ChainKey, Rule, Ruleset, RuleTrace

MODE, PRIMARY, OTHER = "1.36.2-nftables-nft", "192.168.56.10", "10.244.0.1"
SERVICES: ChainKey = ("ip", "kube-proxy", "services")
EVERYWHERE = "fib daddr type local ip daddr != 127.0.0.0/8 meta l4proto . th dport vmap @service-nodeports"
"""The rule for nodePortAddresses with all addresses."""


def rules(text: str = "") -> Ruleset:
    """The rules of the recorded node. text: another text of the rule that looks NodePorts up."""
    found = next(rules for name, rules in node(MODE, "S2-three").rulesets() if name.startswith("nft.json"))
    if not text:
        return found
    rule = Rule(*SERVICES, 3, text, "", "", 7)
    return Ruleset("nft", 0, "", {**found.chains, SERVICES: (rule,)}, found.policies)


def packet(address: str = OTHER, port: int = 30285, ruleset: Ruleset | None = None, *more: Hop) -> Packet:
    trace = RuleTrace(ruleset=ruleset or rules())
    chain = ChainHop(0, HOST, Hook.PREROUTING, table="ip kube-proxy", chain="nat-prerouting", verdict=Verdict.ACCEPT,
                     rule_trace=trace)  # fmt: skip
    return f.packet(
        [chain, *more, DropHop(9, HOST, drop=Drop("NO_SOCKET", "tcp_v4_rcv"))], Endpoints(f.CLIENT, 40000, address, port)
    )


def cluster(folder: Path) -> ClusterView:
    known = node(MODE, "S2-three").cluster_view(folder)
    return ClusterView(known.store, known.sandboxes, frozenset({PRIMARY, OTHER, "127.0.0.1"}))


def found(made: Packet, folder: Path, at: tuple[str, ...] | None = (PRIMARY, "fd00:56::10")) -> list[Finding]:
    return f.findings_of([made], cluster(folder), f.FakeNode(node_ports_at=at))[1]


def test_an_address_of_the_node_at_which_no_node_port_answers(tmp_path: Path) -> None:
    (finding,) = found(packet(), tmp_path)
    assert finding.name == "nodeport_address" and finding.certain
    assert finding.subject == ObjectReference("Service", "default", "http-proxy")
    assert finding.cause == (
        "Nothing answers NodePort 30285 of Service default/http-proxy at 10.244.0.1, an address of this node: kube-proxy is in"
        " nftables mode and answers NodePorts at 192.168.56.10; no rule acted, and the node itself refused the connection."
    )
    assert finding.cure.startswith("Use 192.168.56.10:30285, or set nodePortAddresses")
    (rule,) = f.proofs(finding, "rule")
    assert "@nodeport-ips" in rule and "did not match" in rule and rule.endswith("(derived)")


def test_a_loopback_address_never_answers(tmp_path: Path) -> None:
    (finding,) = found(packet("127.0.0.1"), tmp_path)
    assert finding.certain and "at no loopback address, whatever is set" in finding.cure
    (finding,) = found(packet("127.0.0.1", ruleset=rules(EVERYWHERE)), tmp_path)
    assert finding.certain and "every address of the node but loopback ones" in finding.cause


def test_addresses_that_cannot_be_read_are_no_certainty(tmp_path: Path) -> None:
    (finding,) = found(packet(), tmp_path, None)
    assert not finding.certain and "the addresses of its set nodeport-ips only" in finding.cause
    assert finding.cure.startswith("Use 192.168.56.10:30285"), "the node's address by the API"


DNAT = NatHop(
    1, HOST, Hook.PREROUTING, nat=Nat("DNAT", Endpoints(f.CLIENT, 1, OTHER, 30285), Endpoints(f.CLIENT, 1, "10.244.0.11", 80))
)


@pytest.mark.parametrize(
    "made",
    [packet(port=31999), packet("10.9.9.9"), packet(OTHER, 30285, None, DNAT), packet(ruleset=rules(EVERYWHERE)),
     packet(ruleset=Ruleset("nft", 0, "", {}))],
    ids=["no NodePort", "no address of the node", "translated", "it answers there", "other rules"],
)  # fmt: skip
def test_no_finding(made: Packet, tmp_path: Path) -> None:
    assert found(made, tmp_path) == []


def test_an_address_of_the_set_is_no_finding(tmp_path: Path) -> None:
    """The rules were read before the Service: that is no matter of addresses."""
    assert found(packet(PRIMARY), tmp_path) == []


def test_a_packet_that_is_not_complete_proves_nothing(tmp_path: Path) -> None:
    assert found(replace(packet(), complete=False), tmp_path) == []
