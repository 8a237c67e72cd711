# SPDX-License-Identifier: Apache-2.0
"""The same node with its rules in nftables: iptables-nft's tables and a native one."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest

from scenes import packets, rules, topology, traffic
from tests.kernel.watching import Watch
from tests.support import hop_fields
from tracer.model.filter import Filter
from tracer.model.hop import ChainHop, RewriteHop
from tracer.model.netfilter import Hook

NATIVE = """table inet guard {
    chain from-outside { type filter hook input priority 10; policy accept; tcp dport 9555 drop; }
}"""

AROUND_IP = """table netdev door {
    chain in { type filter hook ingress device "eth0" priority 0; policy accept;
        tcp dport 30285 counter comment "knock"
        tcp dport 9556 drop
    }
}
table bridge inside {
    chain out { type filter hook output priority 0; policy accept; tcp dport 8080 goto pods; }
    chain pods { ip protocol tcp accept comment "any pod"; }
}"""


@pytest.fixture
def nft(watch: Watch) -> Iterator[None]:
    rules.flush()
    rules.restore("http-proxy", "http-proxy-v6", backend="nft")
    yield
    rules.flush()
    rules.restore("http-proxy", "http-proxy-v6")


def test_chains_of_iptables_nft(watch: Watch, nft: None) -> None:
    with watch(Filter(ports=(traffic.NODEPORT_HTTP,))) as seen:
        assert traffic.http_get().outcome == "answered"
    syn = seen.packets[0]
    assert syn.verdict.startswith("SYN answered by pid "), syn.verdict
    chains = [(h.netns, h.hook, h.table, h.chain, h.verdict) for h in syn.hops if isinstance(h, ChainHop)]
    for hook, table, chain in (
        ("PREROUTING", "ip nat", "PREROUTING"), ("FORWARD", "ip filter", "FORWARD"), ("POSTROUTING", "ip nat", "POSTROUTING"),
    ):  # fmt: skip
        assert ("node", hook, table, chain, "ACCEPT") in chains, chains
    assert [h.nat.kind for h in syn.hops if isinstance(h, RewriteHop)] == ["DNAT", "MASQUERADE"]
    later = [h for p in seen.packets[1:] for h in p.hops if hop_fields.table(h) == "ip nat"]
    assert not later, "conntrack must translate later packets"


def test_rejected_by_iptables_nft(watch: Watch, nft: None) -> None:
    with watch(Filter(ports=(traffic.NODEPORT_LONELY,))) as seen:
        assert traffic.tcp_connect(topology.NODE4, traffic.NODEPORT_LONELY).outcome == "refused"
    refused = [p for p in seen.packets if p.tcp_flags == "SYN"]
    assert [p.verdict for p in refused] == ["REJECTED in ip filter/INPUT with icmp-port-unreachable"]


@pytest.mark.matrix
def test_dropped_by_a_native_chain(watch: Watch, nft: None) -> None:
    subprocess.run(["nft", "-f", "-"], input=NATIVE, text=True, check=True)
    with watch(Filter(ports=(9555,))) as seen:
        assert traffic.tcp_connect(topology.NODE4, 9555, timeout=0.5).outcome == "timeout"
        assert traffic.tcp_connect(topology.NODE6, 9555, timeout=0.5).outcome == "timeout"
    assert {p.family for p in seen.packets} == {"IPv4", "IPv6"}
    assert {p.verdict for p in seen.packets} == {"DROPPED in inet guard/from-outside"}


def test_chains_of_a_device_and_of_a_bridge(watch: Watch, nft: None) -> None:
    """Their rules are reported like any others, before and after those of IP."""
    subprocess.run(["nft", "-f", "-"], input=AROUND_IP, text=True, check=True)
    with watch(Filter(ports=(traffic.NODEPORT_HTTP, 9556)), nft=True) as seen:
        assert traffic.http_get().outcome == "answered"
        assert traffic.tcp_connect(topology.NODE4, 9556, timeout=0.5).outcome == "timeout"
    (syn,) = [p for p in seen.packets if p.tcp_flags == "SYN" and p.endpoints.dport != 9556]
    chains = {(h.hook, h.table, h.chain): h for h in syn.hops if isinstance(h, ChainHop) and h.netns == "node"}
    door, pods = (Hook.INGRESS, "netdev door", "in"), (Hook.OUTPUT, "bridge inside", "out")
    assert {door, pods, ("PREROUTING", "ip nat", "PREROUTING")} <= chains.keys(), chains.keys()
    knock, inside = chains[door].rule_trace, chains[pods].rule_trace
    assert knock and [v.rule.comment for v in knock.hits if v.rule] == ["knock"], knock
    assert inside and inside.decision and [str(p.chain) for p in inside.decision.path] == ["out", "pods"], inside
    assert inside.decision.verdict == "ACCEPT" and inside.decision.rule and inside.decision.rule.comment == "any pod"
    dropped = [p.verdict for p in seen.packets if p.endpoints.dport == 9556]
    assert dropped and set(dropped) == {"DROPPED in netdev door/in"}


NESTED_JUMPS = """table inet deep {
    chain in { type filter hook input priority 20; policy accept; jump aside; tcp dport 9557 jump a; }
    chain aside { tcp dport 9557 goto further; }
    chain further { counter; }
    chain a { jump aside; goto b; }
    chain b { counter drop comment "the end"; }
}"""


@pytest.mark.matrix
def test_only_drops_and_the_jumps_to_them(watch: Watch, nft: None) -> None:
    """Of the rules before, only the jumps to the rule that dropped the packet are reported. The packet opens no connection."""
    subprocess.run(["nft", "-f", "-"], input=NESTED_JUMPS, text=True, check=True)
    with watch(Filter(ports=(9557,), drops_only=True), nft=True) as seen:
        packets.send_tcp(topology.NODE4, 9557, flags=packets.FIN)
    assert seen.packets
    for packet in seen.packets:
        assert packet.verdict.startswith("DROPPED in inet deep/in") and packet.complete
        (chain,) = [h for h in packet.hops if isinstance(h, ChainHop)]
        decision = chain.rule_trace.decision if chain.rule_trace else None
        assert decision and decision.rule and decision.rule.comment == "the end", chain.rule_trace
        assert [(p.chain, p.number) for p in decision.path] == [("in", 2), ("a", 2), ("b", 1)]
