# SPDX-License-Identifier: Apache-2.0
"""Shared by the tests of findings: an invented node, rules of real nodes, and packets that passed them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tests.support.syns import FakeInspector
from tracer.findings import Findings
from tracer.findings.context import FindingContext
from tracer.handshakes.analyzer import HandshakeAnalyzer
from tracer.kube.attribution import attribute
from tracer.kube.catalog import ClusterView
from tracer.kube.cni_cache import CniCache
from tracer.kube.store import ObjectStore
from tracer.model.endpoints import Endpoints
from tracer.model.evidence import Evidence
from tracer.model.finding import Finding
from tracer.model.hop import Hop, IpvsDecision, IpvsNatHop, IpvsRefusalHop, Nat, NatHop, TableHop
from tracer.model.namespace_name import HOST
from tracer.model.netfilter import Hook, Verdict
from tracer.model.packet import Packet
from tracer.model.rule import Rule, RuleHit, RuleLocation, Ruleset, RuleTrace
from tracer.node.kube_proxy import KubeProxy
from tracer.node.node import HostReader, ListeningSocket
from tracer.node.procnet import BoundSocket, ConnectedSocket
from tracer.node.proxy_state import ProxyState
from tracer.packets.outcome import classify
from tracer.util.questions import Journal, live

CLIENT = "192.168.56.1"
SECOND = 1_000_000_000


@dataclass
class FakeNode(HostReader):
    """Answers with the given values.

    Attributes:
        listeners: By (port, protocol).
        settings: By name, the same in every namespace.
        connections: Of any protocol. Their inodes are those of `listeners`, in order, and then those of no process.
    """

    listeners: dict[tuple[int, str], ListeningSocket] = field(default_factory=dict)
    proxies: frozenset[int] = frozenset()
    proxy: KubeProxy | None = None
    settings: dict[str, str] = field(default_factory=dict)
    counted: dict[str, int] = field(default_factory=dict)
    interfaces: dict[str, str] = field(default_factory=dict)
    leases: tuple[str, ...] | None = ()
    node_ports_at: tuple[str, ...] | None = None
    queues: tuple[int, ...] | None = ()
    conntrack: dict[str, int] = field(default_factory=dict)
    mtus: dict[str, int] = field(default_factory=dict)
    ways: dict[str, str] = field(default_factory=dict)
    connections: tuple[ConnectedSocket, ...] = ()
    proxy_processes: ProxyState | None = None

    def bound(self, protocol: str) -> tuple[BoundSocket, ...]:
        return tuple(
            BoundSocket(s.address, port, n) for n, ((port, of), s) in enumerate(self.listeners.items()) if of == protocol
        )

    def owner(self, inode: int) -> tuple[int, str]:
        found = dict(enumerate(self.listeners.values())).get(inode)
        return (found.pid, found.command) if found else (0, "")

    def connected(self, protocol: str, port: int) -> tuple[ConnectedSocket, ...]:
        return tuple(s for s in self.connections if s.port == port)

    def is_kube_proxy(self, pid: int) -> bool:
        return pid in self.proxies

    def kube_proxy(self) -> KubeProxy | None:
        return self.proxy

    def proxy_state(self) -> ProxyState | None:
        return self.proxy_processes

    def setting(self, name: str, pid: int = 0, kept_seconds: float = 0) -> str:
        return self.settings.get(name, "")

    def counters(self, pid: int) -> dict[str, int]:
        return self.counted

    def conntrack_counters(self) -> dict[str, int]:
        return self.conntrack

    def mtu(self, interface: str) -> int:
        return self.mtus.get(interface, 0)

    def way_out(self, address: str) -> str:
        return self.ways.get(address, "")

    def addresses(self) -> dict[str, str]:
        return {"127.0.0.1": "lo", **self.interfaces}

    def flannel_subnets(self) -> tuple[str, ...] | None:
        return self.leases

    def node_port_addresses(self) -> tuple[str, ...] | None:
        return self.node_ports_at

    def packet_queues(self) -> tuple[int, ...] | None:
        return self.queues


def view(objects: list[dict[str, Any]], *local: str) -> ClusterView:
    """What is known from these objects of the API on node-1. local: addresses of the node besides its API address."""
    store = ObjectStore("node-1")
    store.load(objects)
    return ClusterView(store, CniCache(()), frozenset(local))


def rule(rules: Ruleset, table: str, chain: str, words: str) -> Rule:
    """The first rule of a chain with these words in its text."""
    return next(r for r in rules.chain("ip", table, chain) if words in r.text)


def hit(rules: Ruleset, table: str, *way: tuple[str, str], verdict: str = "") -> RuleHit:
    """The hit of the last of the rules; each is given by its chain and words of its text."""
    found = [rule(rules, table, *each) for each in way]
    places = tuple(RuleLocation(r.chain, r.number) for r in found)
    return RuleHit(places, found[-1], verdict or found[-1].target, Evidence.OBSERVED)


def policy(chain: str, verdict: str = "ACCEPT") -> RuleHit:
    return RuleHit((RuleLocation(chain, 0),), None, verdict, Evidence.DERIVED)


def table(rules: Ruleset, hook: Hook, name: str, *hits: RuleHit, verdict: Verdict = Verdict.ACCEPT, **more: object) -> Hop:
    return TableHop(0, "node", hook, table=name, verdict=verdict, rule_trace=RuleTrace(hits, ruleset=rules), **more)  # type: ignore[arg-type]


def nat(rules: Ruleset, hook: Hook, kind: str, before: Endpoints, after: Endpoints, *hits: RuleHit) -> Hop:
    return NatHop(0, HOST, hook, nat=Nat(kind, before, after), rule_trace=RuleTrace(hits, ruleset=rules))


def packet(hops: Sequence[Hop], ends: Endpoints, number: int = 1, protocol: str = "TCP") -> Packet:
    """A SYN with these hops, one second after the SYN with the previous number."""
    made = Packet(number, number * SECOND, HOST, "eth0", "IPv4", protocol, ends, "SYN", 60, hops=tuple(hops), number=number)
    verdict, outcome = classify(made)
    return replace(made, verdict=verdict, outcome=outcome)


def findings_of(
    packets: list[Packet], cluster: ClusterView, node: HostReader, journal: Journal = live
) -> tuple[list[Finding], list[Finding]]:
    """(findings in the order in which they became certain, all findings at the end) for these packets, in this order."""
    findings, reported = Findings(FindingContext(cluster, node, journal)), []
    settings = node.settings if isinstance(node, FakeNode) else {}
    syns = HandshakeAnalyzer(FakeInspector(settings))
    for each in (attribute(packet, cluster) for packet in packets):
        syns.feed(each)
        reported += findings.look(each)
        reported += [f for verdict in syns.expire(each.time) for f in findings.look_syn(verdict)]
    return reported + [f for verdict in syns.flush() for f in findings.look_syn(verdict)], findings.all


def proofs(finding: Finding, what: str) -> list[str]:
    return [f"{p.text} ({p.evidence})" for p in finding.proofs if p.what == what]


def ipvs(virtual: str, port: int, real: str = "", chosen: str = "now", sport: int = 40000) -> Packet:
    """A client's SYN to a virtual server: sent to port 8080 of the real server, or refused without a real server."""
    ends = Endpoints(CLIENT, sport, virtual, port)
    if not real:
        decision = IpvsDecision(virtual, port, "tcp", "rr")
        hop = IpvsRefusalHop(0, HOST, Hook.INPUT, verdict=Verdict.REJECT, reject="icmp-port-unreachable", decision=decision)
        return packet([hop], ends)
    decision = IpvsDecision(virtual, port, "tcp", "rr", real=real, real_port=8080, chosen=chosen)
    return packet(
        [IpvsNatHop(0, HOST, Hook.INPUT, decision=decision, nat=Nat("DNAT", ends, Endpoints(CLIENT, sport, real, 8080)))],
        ends,
    )
