# SPDX-License-Identifier: Apache-2.0
"""Which rule of legacy iptables: the kernel's trace agrees, kube-proxy's rules are named, and nothing on the node changes."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from scenes import rules, topology, traffic
from scenes.netns import entered
from tests.kernel.truth import legacy
from tests.kernel.truth.run import rounds
from tests.kernel.watching import Watch
from tests.support import hop_fields
from tracer.model.evidence import Evidence
from tracer.model.filter import Filter
from tracer.model.hop import Hop, RewriteHop, TableHop, decision_of, is_from_conntrack, trace_of, verdict_of
from tracer.model.packet import Packet
from tracer.rules.iptables import sockopt
from tracer.rules.iptables.blob import BlobTable
from tracer.rules.iptables.entry_text import rule_text
from tracer.rules.iptables.generations import GONE
from tracer.rules.iptables.save_join import SavedRules
from tracer.rules.rule_resolver import DECIDED_EARLIER
from tracer.util.endpoint_format import format_endpoint

PACKETS = 120
SPORT = 41_777
"""Source port of the request; random packets have others."""


@pytest.fixture
def restored(watch: Watch) -> Iterator[None]:
    """Restores the plain rules, and no others."""
    yield
    rules.flush()
    rules.restore("http-proxy", "http-proxy-v6")


def path(hop: Hop) -> str:
    assert decision_of(hop), hop_fields.undecided(hop) or hop
    return " > ".join(f"{p.chain} {p.number}" for p in hop_fields.decision(hop).path)


def translation(packet: Packet, kind: str) -> Hop:
    return next(h for h in packet.hops if isinstance(h, RewriteHop) and h.nat.kind == kind)


@pytest.mark.matrix
def test_the_tracer_agrees_with_the_kernels_trace(watch: Watch, restored: None) -> None:
    with legacy.Truth() as truth:
        truth.prepare()
        result = rounds(truth, watch.session, PACKETS, seed=3)
    watch.lost += result.lost
    assert not truth.overruns
    assert result.packets == PACKETS, str(result)
    assert result.mismatches == 0, "\n".join([str(result), *result.examples])
    # Kernels differ in what they do with an extension header that ends after the packet (docs/kernel-facts.md).
    assert all(why.startswith("the header that rule ") for why in result.undecided), result.undecided
    assert result.undecided.total() <= PACKETS // 20, result.undecided
    assert result.hotdrop and result.rules > PACKETS and result.evidence["observed"] and result.evidence["derived"], str(result)


@pytest.mark.matrix
def test_texts_made_of_the_blob_are_those_of_the_tool(restored: None) -> None:
    """Of random rules, on the kernel's own structures and with this machine's iptables."""
    compared: Counter[str] = Counter()
    differences = []
    with legacy.Truth() as truth:
        truth.prepare()
        for seed in range(3):
            truth.restore(Random(seed))
            for family in ("ip", "ip6"):
                for name in sockopt.present(family):
                    table = BlobTable(family, name, *sockopt.read(family, name))
                    saved = SavedRules(table, sockopt.save(family, name))
                    for at, rule in saved.items():
                        own = rule_text(family, table.entry(at), table.target_name(at))
                        compared["equal" if own == rule.text else "different" if own else "none"] += 1
                        differences += [(own, rule.text)] if own and own != rule.text else []
    print(dict(compared))
    assert not differences, differences[:5]
    assert compared["equal"] > compared["none"], compared


@pytest.mark.matrix
@pytest.mark.parametrize("address", [topology.NODE4, topology.NODE6])
def test_the_path_to_a_pod(watch: Watch, address: str) -> None:
    with watch(Filter(ports=(traffic.NODEPORT_HTTP,))) as seen:
        assert traffic.http_get(address, sport=SPORT).outcome == "answered"
    # A random packet of the previous test may come late, and have the NodePort's number.
    syn, *later = [p for p in seen.packets if p.flow and p.flow.orig.sport == SPORT]
    hop = translation(syn, "DNAT")
    chains = [step.split()[0] for step in path(hop).split(" > ")]
    assert chains[:3] == ["PREROUTING", "KUBE-SERVICES", "KUBE-NODEPORTS"]
    assert chains[-1].startswith("KUBE-SEP-") and chains[-2].startswith("KUBE-SVC-")
    rule = hop_fields.decision(hop).rule
    assert rule and rule.target == "DNAT" and f"--to-destination {rule_address(hop)}" in rule.text
    assert "default/http-proxy" in rule.comment
    assert hop_fields.decision(hop).evidence is Evidence.OBSERVED and not is_from_conntrack(hop)
    assert [v.verdict for v in hop_fields.hits(hop) if v.verdict not in ("JUMP", "RETURN")] == ["MARK", "DNAT"]
    assert path(translation(syn, "MASQUERADE")).startswith("POSTROUTING")
    for packet in later:
        reply = packet.flow is not None and packet.flow.is_reply
        later_hop = translation(packet, "reverse DNAT" if reply else "DNAT")
        assert is_from_conntrack(later_hop) and path(later_hop) == path(hop)


def rule_address(hop: Hop) -> str:
    assert isinstance(hop, RewriteHop)
    ends = hop.nat.after
    return format_endpoint(ends.dst, ends.dport)


def test_a_connection_opened_before_the_trace(watch: Watch) -> None:
    with traffic.connections(topology.NODE4, traffic.NODEPORT_HTTP, 1) as (sock,):
        with watch(Filter(ports=(traffic.NODEPORT_HTTP,))) as seen:
            sock.sendall(b"GET / HTTP/1.1\r\n\r\n")
            sock.recv(1000)
        traces = [trace_of(h) for p in seen.packets for h in p.hops if isinstance(h, RewriteHop)]
    assert traces and {w for w in traces if w} == {DECIDED_EARLIER}


def test_a_reject_is_named(watch: Watch) -> None:
    with watch(Filter(ports=(traffic.NODEPORT_LONELY,))) as seen:
        assert traffic.tcp_connect(topology.NODE4, traffic.NODEPORT_LONELY).outcome == "refused"
    hop = next(h for h in seen.packets[0].hops if verdict_of(h) == "REJECT")
    assert path(hop).startswith("INPUT") and "KUBE-EXTERNAL-SERVICES 1" in path(hop)
    rule = hop_fields.decision(hop).rule
    assert rule and "has no endpoints" in rule.comment


def test_a_policy_is_named(watch: Watch, restored: None) -> None:
    rules.restore("http-proxy", "http-proxy-v6", extra=["policy-drop-forward"])
    with watch(Filter(ports=(9999,))) as seen:
        assert traffic.tcp_connect(topology.PODS[0].addr4, 9999, timeout=0.5).outcome == "timeout"
    hop = next(h for h in seen.packets[0].hops if isinstance(h, TableHop) and h.verdict == "DROP")
    assert path(hop) == "FORWARD 0"


def test_rules_replaced_between_two_packets(watch: Watch, restored: None) -> None:
    """Each packet is explained by the rules in force when it came; those replaced before being read are reported as gone."""
    with watch(Filter(ports=(9997,))) as seen:
        traffic.tcp_connect(topology.NODE4, 9997, timeout=0.5)
        for port in (9996, 9997):
            add = ["iptables-legacy", "-I", "INPUT", "-p", "tcp", "--dport", str(port), "-j", "DROP"]
            subprocess.run(add, check=True)
            traffic.tcp_connect(topology.NODE4, 9997, timeout=0.3)
    inputs = [h for p in seen.packets for h in p.hops if isinstance(h, TableHop) and h.table == "filter" and h.hook == "INPUT"]
    explained = {h.rule_trace.undecided or path(h) for h in inputs if h.rule_trace}
    assert explained <= {"INPUT 0", "INPUT 1", GONE} and "INPUT 1" in explained, explained
    assert all(path(h) == "INPUT 1" for h in inputs if h.verdict == "DROP")


def saved() -> list[str]:
    """All rules without counters, the tables of each namespace, and the modules."""
    commands = ("iptables-legacy-save", "ip6tables-legacy-save")
    texts = [subprocess.run([c], capture_output=True, text=True, check=True).stdout for c in commands]
    lines = [line for text in texts for line in text.splitlines() if line[0] in "*-"]
    for name in (None, topology.CLIENT, *(p.name for p in topology.PODS)):
        with entered(name):
            lines += [Path(f"/proc/thread-self/net/{family}_tables_names").read_text() for family in ("ip", "ip6")]
    return lines + sorted(line.split()[0] for line in Path("/proc/modules").read_text().splitlines())


def test_tracing_changes_nothing(watch: Watch) -> None:
    before = saved()
    with watch(Filter(ports=(traffic.NODEPORT_HTTP,))) as seen:
        traffic.http_get()
    assert any(hop_fields.hits(h) for p in seen.packets for h in p.hops)
    assert saved() == before
