# SPDX-License-Identifier: Apache-2.0
"""A stale RETURN before MASQUERADE is a finding; a correct RETURN is none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support import findings as f
from tests.support.nodes import node
from tracer.findings import Findings
from tracer.findings import context as finding_context
from tracer.findings.context import FindingContext
from tracer.model.endpoints import Endpoints
from tracer.model.finding import Finding
from tracer.model.hop import HookHop, RewriteHop
from tracer.model.namespace_name import HOST, Netns
from tracer.model.netfilter import Hook, Verdict
from tracer.model.packet import Flow, Packet
from tracer.model.rule import RuleHit, Ruleset

MODES = ["1.20.2-iptables-legacy", "1.20.2-iptables-nft", "1.36.2-iptables-legacy"]
STALE = ("POSTROUTING", "! -s 10.244.0.0/16 -d 10.244.3.0/24 -j RETURN")
SERVICE, AWAY = (Endpoints("192.168.56.10", 40000, *end) for end in (("172.30.253.123", 8080), ("10.244.3.7", 8080)))


def request(rules: Ruleset, *post: RuleHit, after: Endpoints = AWAY, masquerade: bool = False) -> Packet:
    hit = f.hit(rules, "nat", ("OUTPUT", "KUBE-SERVICES"), ("KUBE-SERVICES", "KUBE-SVC-5DZI2HW7VHZLUOJ5"))
    hops = [
        f.nat(rules, Hook.OUTPUT, "DNAT", SERVICE, after, hit),
        f.table(rules, Hook.POSTROUTING, "nat", *post, f.policy("POSTROUTING"), out_iface="flannel.1"),
    ]
    if masquerade:
        hops.append(f.nat(rules, Hook.POSTROUTING, "MASQUERADE", after, replace(after, src="10.244.0.0"), *post))
    hops.append(HookHop(9, HOST, Hook.POSTROUTING, verdict=Verdict.ACCEPT, out_iface="flannel.1"))
    return f.packet(hops, SERVICE)


def kube(rules: Ruleset) -> RuleHit:
    """kube-proxy's own RETURN, for packets without its mark."""
    return f.hit(rules, "nat", ("POSTROUTING", "KUBE-POSTROUTING"), ("KUBE-POSTROUTING", "-j RETURN"))


def found(mode: str, made: Packet, folder: Path, with_api: bool = True, on: f.FakeNode | None = None) -> list[Finding]:
    return f.findings_of([made], node(mode, "S3").cluster_view(folder, with_api), on or f.FakeNode())[1]


@pytest.mark.parametrize("mode", MODES)
def test_a_stale_return(mode: str, tmp_path: Path) -> None:
    rules = node(mode, "S3").iptables()
    (finding,) = found(mode, request(rules, kube(rules), f.hit(rules, "nat", STALE)), tmp_path)
    assert finding.name == "missing_masquerade" and finding.certain
    assert finding.cause == (
        "Requests to pods in 10.244.3.0/24 keep the source address 192.168.56.10: a stale RETURN rule of flannel for"
        " that network,"
        " which is not this node's, stands before MASQUERADE, so the answer does not come back on the path of the request."
    )
    stale, behind = f.proofs(finding, "rule")
    assert stale.startswith("POSTROUTING 5: ! -s 10.244.0.0/16 -d 10.244.3.0/24 -j RETURN") and stale.endswith("(observed)")
    assert behind.startswith("behind it and so not reached: POSTROUTING 6: ! -s 10.244.0.0/16 -d 10.244.0.0/16 -j MASQUERADE")
    assert f.proofs(finding, "object") == ["Node node-1 has podCIDR 10.244.0.0/24 (Kubernetes API)"]
    assert "left by flannel.1 with its source unchanged" in f.proofs(finding, "packet")[0]
    assert "iptables-legacy -t nat -D POSTROUTING ! -s 10.244.0.0/16 -d 10.244.3.0/24 -j RETURN" in finding.cure


def test_flannels_lease_proves_it_without_the_api(tmp_path: Path) -> None:
    rules = node(MODES[0], "S3").iptables()
    made = request(rules, f.hit(rules, "nat", STALE))
    (finding,) = found(MODES[0], made, tmp_path, False, f.FakeNode(leases=("10.244.0.0/24",)))
    assert finding.certain
    assert f.proofs(finding, "setting") == ["flannel's lease here is 10.244.0.0/24 (/run/flannel/subnet.env)"]
    (unsure,) = found(MODES[0], made, tmp_path, False)
    assert not unsure.certain and "perhaps not this node's" in unsure.cause


def test_the_return_for_this_nodes_own_subnet_is_no_finding(tmp_path: Path) -> None:
    rules = node(MODES[0], "S3").iptables()
    own = f.hit(rules, "nat", ("POSTROUTING", "FLANNEL-POSTRTG"), ("FLANNEL-POSTRTG", "! -s 10.244.0.0/16 -d 10.244.0.0/24 "))
    assert not found(MODES[0], request(rules, own, after=replace(AWAY, dst="10.244.0.11")), tmp_path)
    made = request(rules, f.hit(rules, "nat", STALE))
    assert not found(MODES[0], made, tmp_path, False, f.FakeNode(leases=("10.244.3.0/24",)))


def test_other_returns_and_masquerades_are_no_finding(tmp_path: Path) -> None:
    rules = node(MODES[0], "S3").iptables()
    stale = f.hit(rules, "nat", STALE)
    inside = f.hit(rules, "nat", ("POSTROUTING", "-s 10.244.0.0/16 -d 10.244.0.0/16 -j RETURN"))
    assert not found(MODES[0], request(rules, kube(rules)), tmp_path)
    assert not found(MODES[0], request(rules, inside), tmp_path)
    assert not found(MODES[0], request(rules, stale, masquerade=True), tmp_path)
    assert not found(MODES[0], request(rules, stale, after=replace(AWAY, dst="10.244.7.7")), tmp_path)
    lossy = replace(request(rules, stale), complete=False)
    assert not found(MODES[0], lossy, tmp_path), "the lost event may be its MASQUERADE"
    untranslated = request(rules, stale)
    untranslated = replace(untranslated, hops=tuple(h for h in untranslated.hops if not isinstance(h, RewriteHop)))
    assert not found(MODES[0], untranslated, tmp_path)


@pytest.mark.parametrize(
    ("replies", "expected"), [(False, "sent 2, no answer was seen"), (True, "sent 1, an answer came in by eth0")]
)
def test_whether_an_answer_came(replies: bool, expected: str, tmp_path: Path) -> None:
    rules = node(MODES[0], "S3").iptables()
    flow = Flow(SERVICE, AWAY.reversed, "NEW", False, 0, HOST)
    first = replace(request(rules, f.hit(rules, "nat", STALE)), flow=flow)
    later = f.packet(
        [HookHop(0, HOST, Hook.PREROUTING, verdict=Verdict.ACCEPT, in_iface="eth0" if replies else "")], SERVICE, 2
    )
    later = replace(later, flow=replace(flow, is_reply=replies))
    (finding,) = f.findings_of([first, later], node(MODES[0], "S3").cluster_view(tmp_path), f.FakeNode())[1]
    assert f.proofs(finding, "packet")[-1] == f"packets from 192.168.56.10:40000 to 172.30.253.123:8080: {expected} (observed)"
    assert finding.certain and finding.packets == 2


def test_an_answer_of_another_zone_is_no_answer(tmp_path: Path) -> None:
    """Nor is one of another namespace; a request that another namespace tracks is not followed."""
    rules = node(MODES[0], "S3").iptables()
    flow = Flow(SERVICE, AWAY.reversed, "NEW", False, 0, HOST)
    first = replace(request(rules, f.hit(rules, "nat", STALE)), flow=flow)
    hook = HookHop(0, HOST, Hook.PREROUTING, verdict=Verdict.ACCEPT, in_iface="eth0")
    later = [
        replace(f.packet([hook], SERVICE, n), flow=replace(flow, zone=zone, netns=Netns(netns), is_reply=is_reply))
        for n, (zone, netns, is_reply) in enumerate([(7, "node", True), (0, "pod-a", True), (0, "node", False)], 2)
    ]
    cluster = node(MODES[0], "S3").cluster_view(tmp_path)
    (finding,) = f.findings_of([first, *later], cluster, f.FakeNode())[1]
    assert f.proofs(finding, "packet")[-1].endswith("sent 2, no answer was seen (observed)")
    elsewhere = replace(first, flow=replace(flow, netns=Netns("client")))
    (finding,) = f.findings_of([elsewhere, *later], cluster, f.FakeNode())[1]
    assert not any("answer" in proof for proof in f.proofs(finding, "packet"))


def test_an_answer_is_not_forgotten_with_the_counts_of_other_findings(tmp_path: Path) -> None:
    """Otherwise "no answer was seen" would be stated although one was."""
    rules = node(MODES[0], "S3").iptables()
    context = FindingContext(node(MODES[0], "S3").cluster_view(tmp_path), f.FakeNode())
    findings = Findings(context)
    flow = Flow(SERVICE, AWAY.reversed, "NEW", False, 0, HOST)
    findings.look(replace(request(rules, f.hit(rules, "nat", STALE)), flow=flow))
    hook = HookHop(0, HOST, Hook.PREROUTING, verdict=Verdict.ACCEPT, in_iface="eth0")
    findings.look(replace(f.packet([hook], SERVICE, 2), flow=replace(flow, is_reply=True)))
    for number in range(context.counts.most):
        context.counts["asked", number] += 1
    findings.look(replace(f.packet([hook], SERVICE, 3), flow=flow))
    (finding,) = findings.all
    assert f.proofs(finding, "packet")[-1].endswith("sent 2, an answer came in by eth0 (observed)")


def test_followed_connections_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an evicted connection nothing more is said."""
    monkeypatch.setattr(finding_context, "CONNECTIONS_KEPT", 3)
    rules = node(MODES[0], "S3").iptables()
    context = FindingContext(node(MODES[0], "S3").cluster_view(tmp_path), f.FakeNode())
    findings = Findings(context)
    flows = [Flow(replace(SERVICE, sport=n), AWAY.reversed, "NEW", False, 0, HOST) for n in range(10)]
    for flow in flows:
        findings.look(replace(request(rules, f.hit(rules, "nat", STALE)), flow=flow))
    assert (len(context.reported), context.reported.evicted) == (3, 7)
    later = f.packet([HookHop(0, HOST, Hook.PREROUTING, verdict=Verdict.ACCEPT)], SERVICE, 2)
    assert not findings.look(replace(later, flow=flows[0])) and findings.all[0].packets == 10
