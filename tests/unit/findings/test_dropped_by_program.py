# SPDX-License-Identifier: Apache-2.0
"""Which eBPF program drops packets; several candidates make no certain finding."""

from __future__ import annotations

import pytest

from tests.support import findings as f
from tests.support import policies
from tests.support.policies import pod, policy
from tracer.kube.catalog import ClusterView
from tracer.model.bpf_program import AttachedProgram, AttachPoint, ProgramAction
from tracer.model.endpoints import Endpoints
from tracer.model.finding import Finding
from tracer.model.hop import Drop, DropHop
from tracer.model.namespace_name import HOST, Netns
from tracer.model.netfilter import Verdict

ENDS = Endpoints("10.244.0.11", 40000, "10.244.0.12", 8080)
CILIUM = AttachedProgram("tc", 42, "cil_from_container", "ab12", "Cilium", "pin", "/sys/fs/bpf/cilium/x")
OTHER = AttachedProgram("tcx", 43, "other")


def found(
    *candidates: AttachedProgram,
    point: AttachPoint = AttachPoint.TC_INGRESS,
    doubt: str = "",
    iface: str = "lxc1",
    netns: Netns = HOST,
    cluster: ClusterView | None = None,
    reason: str = "TC_INGRESS",
) -> list[Finding]:
    drop = Drop(reason, "__netif_receive_skb_core", program=ProgramAction(point, iface, candidates, doubt))
    hop = DropHop(0, netns, in_iface=iface, verdict=Verdict.DROP, drop=drop)
    findings = f.findings_of([f.packet([hop], ENDS)], cluster or ClusterView(), f.FakeNode())[1]
    return [x for x in findings if x.name == "dropped_by_program"]


def test_the_only_program() -> None:
    (finding,) = found(CILIUM)
    assert finding.certain
    assert finding.cause == (
        "eBPF program cil_from_container (id 42), loaded by Cilium, drops packets from 10.244.0.11 to 10.244.0.12:8080 at"
        " tc ingress of lxc1. What Cilium decides is in maps of its own, which are not read, so the policy, if one decides, is"
        " unknown: which NetworkPolicies select its pods is not known."
    )
    assert finding.check == (
        "`tc filter show dev lxc1 ingress` shows the filters of tc. In the pod of Cilium's agent `cilium-dbg monitor --type"
        " drop`, or `hubble observe --verdict DROPPED`, shows the reason."
    )
    assert "a NetworkPolicy" in finding.cure and "10.244.0.11 to reach 10.244.0.12:8080" in finding.cure
    (proof,) = f.proofs(finding, "program")
    assert proof.startswith(
        "eBPF program cil_from_container (id 42), attached as tc, loaded by Cilium, tag ab12, /sys/fs/bpf/cilium/x"
    )


def test_policies_of_the_pods_are_candidates() -> None:
    web, client = pod("shop/web", ENDS.dst), pod("shop/client", ENDS.src)
    (finding,) = found(CILIUM, cluster=policies.cluster(web, client, policy("shop/deny-all")))
    assert finding.cause.endswith(
        "so the policy, if one decides, is unknown: candidate is NetworkPolicy shop/deny-all (ingress of web), which by the"
        " objects of the API does not allow it."
    )
    assert f.proofs(finding, "object") == [
        "NetworkPolicy shop/deny-all, ingress of pod web: it has no ingress rule (Kubernetes API)"
    ]
    assert "`kubectl get networkpolicies -n shop -o yaml`" in finding.check


def test_a_name_alone_is_no_evidence_of_cilium() -> None:
    (finding,) = found(AttachedProgram("tc", 42, "cil_from_container", "", "Cilium", "name"))
    assert "named as by Cilium" in finding.cause
    assert "decides, if the program is Cilium's, is in maps of its own" in finding.cause


def test_only_the_loader_of_all_candidates_may_carry_out_a_policy() -> None:
    doubt = "which of them is not known"
    for name, loader in (("cali_x", "Calico"), ("sd_x", "systemd"), ("other", "")):
        (finding,) = found(CILIUM, AttachedProgram("tc", 44, name, "", loader, "pin"), doubt=doubt)
        assert "policy" not in finding.cause
    (finding,) = found(CILIUM, CILIUM, doubt=doubt)
    assert "What Cilium decides" in finding.cause and not finding.certain


def test_several_programs_are_not_certain() -> None:
    (finding,) = found(CILIUM, OTHER, doubt="which of them is not known")
    assert not finding.certain and finding.cause.startswith(
        "Perhaps one of 2 programs drops (which of them is not known) packets"
    )
    assert len(f.proofs(finding, "program")) == 2
    assert "tc filter show" in finding.check and "bpftool net show dev lxc1" in finding.check


def test_a_candidate_is_not_certain() -> None:
    (finding,) = found(OTHER, point=AttachPoint.TC_EGRESS, doubt="this kernel gives no reason")
    assert not finding.certain and "Perhaps eBPF program other (id 43) drops (this kernel gives no reason)" in finding.cause
    assert finding.check == "`bpftool net show dev lxc1` shows programs of tcx."


def test_xdp_in_a_pod() -> None:
    (finding,) = found(AttachedProgram("XDP generic", 7, "filter"), point=AttachPoint.XDP, netns=Netns("pod-a"))
    assert finding.check == "In pod-a: `ip -d link show dev lxc1` shows the XDP program with its id."
    assert "at XDP of lxc1 in pod-a." in finding.cause and "NetworkPolicy" not in finding.cure


def test_a_filter_of_tc() -> None:
    (finding,) = found(AttachedProgram("tc filter", 0, "flower pref 10"))
    assert finding.cause.startswith("Tc filter flower pref 10 drops packets")


def test_a_program_of_a_cgroup() -> None:
    program = AttachedProgram("cgroup", 7, "sd_fw_egress", loader="systemd", loader_evidence="name", cgroup="/system.slice")
    (finding,) = found(program, point=AttachPoint.CGROUP_EGRESS, iface="")
    assert finding.certain and finding.cause == (
        "eBPF program sd_fw_egress (id 7), named as by systemd, drops packets from 10.244.0.11 to 10.244.0.12:8080 at"
        " cgroup egress of /system.slice."
    )
    assert finding.check == "`bpftool cgroup tree` shows the programs of all cgroups with their ids."
    (proof,) = f.proofs(finding, "program")
    assert proof.startswith("eBPF program sd_fw_egress (id 7), attached as cgroup at /system.slice, named as by systemd")


def test_a_program_of_sk_lookup() -> None:
    program = AttachedProgram("sk_lookup", 16, "cil_lookup", loader="Cilium", loader_evidence="pin")
    (finding,) = found(program, point=AttachPoint.SK_LOOKUP, netns=Netns("pod-a"), reason="NO_SOCKET")
    assert finding.certain and finding.cause == (
        "eBPF program cil_lookup (id 16), loaded by Cilium, refuses packets from 10.244.0.11 to 10.244.0.12:8080 at sk_lookup"
        " in pod-a."
    ), "it carries out no policy"
    assert finding.check == (
        "In pod-a: `bpftool link show` shows the links of type netns with the ids of their programs; `ss -lntu` shows whether a"
        " socket listens at all."
    )
    assert finding.cure.startswith("If it should not refuse them")
    (finding,) = found(program, OTHER, point=AttachPoint.SK_LOOKUP, doubt="which of them is not known", reason="NO_SOCKET")
    assert not finding.certain and finding.cause.startswith("Perhaps one of 2 programs refuses (which of them is not known)")


def test_netkit() -> None:
    (finding,) = found(AttachedProgram("netkit peer", 7, "filter"), point=AttachPoint.NETKIT, iface="nk-a")
    assert finding.certain and "at netkit of nk-a." in finding.cause
    assert finding.check == (
        "`ip -d link show dev nk-a` shows the pair's policies; `bpftool net show`, in the namespace of its primary end, shows"
        " its programs."
    )
    (finding,) = found(AttachedProgram("netkit policy", 0, "drop"), point=AttachPoint.NETKIT, iface="nk-a")
    assert finding.certain and finding.cause.startswith("Netkit's default policy drops packets from")


@pytest.mark.parametrize("iface", ["a;reboot", "$(id)", "a b"])
def test_the_name_of_an_interface_is_quoted(iface: str) -> None:
    (finding,) = found(CILIUM, iface=iface)
    assert f"dev '{iface}' ingress" in finding.check


def test_without_a_program_there_is_no_finding() -> None:
    assert found(doubt="none was attached there") == []
    plain = f.packet([DropHop(0, HOST, verdict=Verdict.DROP, drop=Drop("TC_INGRESS", "x"))], ENDS)
    findings = f.findings_of([plain], ClusterView(), f.FakeNode())[1]
    assert [x.name for x in findings] == []
