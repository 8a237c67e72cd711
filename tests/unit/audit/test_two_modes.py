# SPDX-License-Identifier: Apache-2.0
"""kube-proxy went from iptables to ipvs mode: rules left that still act are reported, those without effect are no evidence."""

from __future__ import annotations

from pathlib import Path

from tests.support import audits, real_nodes
from tests.support.nodes import node
from tracer.audit import audit, hostport_takes_service, no_local_endpoints, nodeport_host_process
from tracer.audit.two_modes import check
from tracer.node.node import ListeningSocket


def test_a_stale_reject_acts_before_ipvs() -> None:
    (finding,) = check(real_nodes.switched_to_ipvs(ready=True))
    assert finding.certain and "kube-proxy is in ipvs mode, and 4 rules of its iptables mode still act" in finding.cause
    assert (
        "1 of them refuses requests that IPVS has real servers for: 10.77.0.7:32400 (Service video/vod:http)" in finding.cause
    )
    assert "31443" not in finding.cause, "IPVS has no real server for that one either"
    assert finding.proofs[0].text.startswith("KUBE-EXTERNAL-SERVICES 1: ") and finding.proofs[-1].text.endswith(
        "-> 10.60.7.9:8000"
    )


def test_rules_that_refuse_what_ipvs_would_refuse_too() -> None:
    (finding,) = check(real_nodes.switched_to_ipvs())
    assert finding.certain and "still act" in finding.cause and "refuse" not in finding.cause


def test_a_chain_that_no_rule_leads_to_is_no_evidence() -> None:
    state = real_nodes.switched_to_ipvs()
    assert list(no_local_endpoints.check(state)) == [], "KUBE-XLB- has such a rule, but no rule leads there"
    shown = [p.text for f in audit(state) if f.name not in ("leftover_chains", "two_modes") for p in f.proofs]
    assert not any(text.startswith(("KUBE-NODEPORTS", "KUBE-SVC-", "KUBE-XLB-")) for text in shown), shown


def test_the_pod_wins_in_ipvs_mode_in_either_order_of_the_rules() -> None:
    finding = next(f for f in hostport_takes_service.check(real_nodes.switched_to_ipvs()) if f.key[0] == 31555)
    assert (
        finding.certain and "the pod gets every request, for portmap's rule translates it before IPVS is asked" in finding.cause
    )
    assert "0.7.5" not in finding.cure and "the order of the rules makes no difference" in finding.cure
    assert "ipvsadm -Ln" in finding.check and "do not show" not in finding.check
    text = real_nodes.text("ipvs-iptables-save").splitlines()
    jump = "-A PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT"
    text.remove(jump)
    text.insert(text.index('-A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES') + 1, jump)
    behind = real_nodes.switched_to_ipvs(rules="\n".join(text) + "\n")
    again = next(f for f in hostport_takes_service.check(behind) if f.key[0] == 31555)
    assert again.cause == finding.cause, "the same cause with portmap's jump behind kube-proxy's"


def test_the_finding_for_a_process_on_a_nodeport_says_what_ipvs_does() -> None:
    listeners = {(31443, "tcp"): ListeningSocket("0.0.0.0", 31443, 1315, "node-agent"),
                 (30125, "udp"): ListeningSocket("0.0.0.0", 30125, 1317, "statsd-host")}  # fmt: skip
    found = {f.key[0]: f for f in nodeport_host_process.check(real_nodes.switched_to_ipvs(listeners))}
    assert set(found) == {31443, 30125} and all(f.certain for f in found.values())
    assert "and IPVS sends every request to one of the Service's pods" in found[30125].cause
    assert "every request is refused" in found[31443].cause


def test_healthy_nodes(tmp_path: Path) -> None:
    for mode in ("1.20.2-ipvs-nft", "1.20.2-iptables-nft", "1.36.2-nftables-nft"):
        assert list(check(audits.state(node(mode, "S1"), tmp_path))) == [], mode
