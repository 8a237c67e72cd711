# SPDX-License-Identifier: Apache-2.0
"""Drops of Open vSwitch: the reason is observed, the policy is unknown, and those that select the pods are candidates."""

from __future__ import annotations

import pytest

from tests.support import findings as f
from tests.support.policies import Object, cluster, node, pod, policy
from tracer.model.endpoints import Endpoints
from tracer.model.finding import Finding
from tracer.model.hop import Drop, DropHop, Hop, Nat, NatHop
from tracer.model.namespace_name import HOST
from tracer.model.netfilter import Hook, Verdict

WEB, CLIENT = pod("shop/web", "10.0.0.1", app="web"), pod("shop/client", "10.0.0.2", app="client")
ENDS = Endpoints("10.0.0.2", 40000, "10.0.0.1", 8080)
DENY, ALLOW = policy("shop/deny-all"), policy("shop/allow", {"app": "web"}, ingress=[{"ports": [{"port": 80}]}])


def found(
    *items: Object,
    reason: str = "OVS_DROP_LAST_ACTION",
    function: str = "do_execute_actions",
    protocol: str = "TCP",
    ends: Endpoints = ENDS,
    before: tuple[Hop, ...] = (),
) -> list[Finding]:
    hop = DropHop(0, HOST, in_iface="client-1a2b3c", verdict=Verdict.DROP, drop=Drop(reason, function))
    packet = f.packet([*before, hop], ends, protocol=protocol)
    made = f.findings_of([packet], cluster(*items), f.FakeNode())[1]
    return [x for x in made if x.name == "dropped_by_open_vswitch"]


def test_candidates_that_do_not_allow_it() -> None:
    (finding,) = found(WEB, CLIENT, DENY, ALLOW, policy("other/deny-all"))
    assert finding.certain and finding.cause == (
        "The Open vSwitch datapath drops tcp 8080 from pod shop/client to pod shop/web at client-1a2b3c: OVS_DROP_LAST_ACTION,"
        " the flow that it matched does not forward it. The flows of Open vSwitch are not seen, so the policy, if one decides,"
        " is unknown: candidates are NetworkPolicies shop/allow (ingress of web), shop/deny-all (ingress of web), which by the"
        " objects of the API do not allow it."
    )
    assert f.proofs(finding, "object") == [
        "NetworkPolicy shop/allow, ingress of pod web: ingress rule 1 allows tcp 80, not tcp 8080 (Kubernetes API)",
        "NetworkPolicy shop/deny-all, ingress of pod web: it has no ingress rule (Kubernetes API)",
    ]
    assert "`kubectl get networkpolicies -n shop -o yaml`" in finding.check


@pytest.mark.parametrize(
    ("items", "clause"),
    [
        ((), "which NetworkPolicies select its pods is not known."),
        ((WEB, CLIENT), "no NetworkPolicy of the API limits the pods that are known."),
        ((WEB, CLIENT, policy("shop/open", ingress=[{}])), "candidate is NetworkPolicy shop/open (ingress of web), which by the"
         " objects of the API allows it."),
        ((CLIENT, policy("shop/out", {"app": "client"}, policyTypes=["Egress"], egress=[{"to": [{"podSelector": {"matchLabels":
          {"app": "web"}}}]}])), "candidate is NetworkPolicy shop/out (egress of client)."),
    ],
)  # fmt: skip
def test_what_is_said_of_policies(items: tuple[Object, ...], clause: str) -> None:
    (finding,) = found(*items)
    assert finding.cause.endswith(f"so the policy, if one decides, is unknown: {clause}")


def test_what_the_pods_own_node_sends_has_no_candidates() -> None:
    items = WEB, node("node-1", "192.168.56.10"), DENY
    (finding,) = found(*items, ends=Endpoints("192.168.56.10", 40000, "10.0.0.1", 8080))
    assert "unknown: no NetworkPolicy of the API limits the pods" in finding.cause


def test_the_destination_is_that_after_translations() -> None:
    """AntreaProxy translates in Open vSwitch itself, kube-proxy before it."""
    asked = Endpoints("10.0.0.2", 40000, "10.96.0.9", 80)
    nat = NatHop(0, HOST, Hook.PREROUTING, nat=Nat("DNAT", asked, ENDS))
    (finding,) = found(WEB, CLIENT, DENY, ends=asked, before=(nat,))
    assert "tcp 8080 from pod shop/client to pod shop/web" in finding.cause and "shop/deny-all" in finding.cause


def test_a_protocol_without_ports_is_not_evaluated() -> None:
    (finding,) = found(WEB, CLIENT, ALLOW, protocol="ICMP", ends=Endpoints("10.0.0.2", 0, "10.0.0.1", 0))
    assert finding.cause.endswith("candidate is NetworkPolicy shop/allow (ingress of web).")


@pytest.mark.parametrize(
    ("reason", "function", "words"),
    [
        ("OVS_DROP_METER", "do_execute_actions", "a meter limits the flow that it matched."),
        ("OPENVSWITCH 77", "do_execute_actions", "the name of this reason is not known."),
        ("NOT_SPECIFIED", "ovs_dp_process_packet", "no flow matched it, and ovs-vswitchd could not be asked for one."),
        ("", "ovs_dp_process_packet.isra.0", "no flow matched it, and ovs-vswitchd could not be asked for one."),
    ],
)
def test_other_reasons_have_no_candidates(reason: str, function: str, words: str) -> None:
    (finding,) = found(WEB, CLIENT, DENY, reason=reason, function=function)
    assert finding.cause.endswith(words) and not f.proofs(finding, "object")
    assert ("Start ovs-vswitchd" in finding.cure) == (words.startswith("no flow"))


@pytest.mark.parametrize(("reason", "function"), [("", "ip_rcv"), ("NO_SOCKET", "ovs_dp_process_packet")])
def test_other_drops_are_not_open_vswitchs(reason: str, function: str) -> None:
    assert found(WEB, CLIENT, DENY, reason=reason, function=function) == []


def test_many_policies_are_counted() -> None:
    many = [policy(f"shop/p{n:03}") for n in range(40)]
    (finding,) = found(WEB, CLIENT, *many)
    assert "and 32 more" in finding.cause and len(f.proofs(finding, "object")) == 8
