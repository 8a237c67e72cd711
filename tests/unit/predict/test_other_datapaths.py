# SPDX-License-Identifier: Apache-2.0
"""A path through Open vSwitch or a CNI's eBPF program: the rules alone do not say that the packet passes."""

from __future__ import annotations

import errno
from dataclasses import replace

import pytest

from tests.support import audits
from tests.support.audits import LINKS, FakeRoutes
from tests.support.policies import cluster, pod, policy
from tracer.kernel import attached_programs
from tracer.kernel.attached_programs import Attached
from tracer.kube.attribution import attribute_path
from tracer.kube.catalog import ClusterView
from tracer.model.bpf_program import AttachedProgram, AttachPoint
from tracer.model.packet import Outcome
from tracer.model.prediction import PredictedPath
from tracer.node.routes import NetworkDevice
from tracer.predict.other_datapaths import OtherDatapaths, Programs, with_other_datapaths
from tracer.predict.query import PathQuery

POD, OTHER, FAR = "10.10.0.11", "10.10.0.12", "192.0.2.7"
GATEWAY = NetworkDevice("antrea-gw0", "openvswitch", ("10.10.0.0/24",))
LXC = NetworkDevice("lxc1", "veth", ("10.10.0.0/24",))
CILIUM = AttachedProgram("tcx", 42, "cil_from_container", "", "Cilium", "pin", "/sys/fs/bpf/cilium/x")
RULES = "*filter\n:FORWARD ACCEPT [0:0]\nCOMMIT\n"
DROPS = "*filter\n:FORWARD ACCEPT [0:0]\n-A FORWARD -s 10.10.0.11/32 -j DROP\nCOMMIT\n"
PODS = pod("shop/web", OTHER), pod("shop/client", POD)


def path(
    device: NetworkDevice,
    programs: Programs | None = None,
    rules: str = RULES,
    to: str = OTHER,
    objects: ClusterView | None = None,
    unread: str = "",
) -> PredictedPath:
    """The only path of a packet from the pod. device: the pod's interface."""
    devices, state = (*LINKS, device), audits.of_text(rules)
    view = objects or ClusterView()
    predictor = audits.path_predictor(replace(state, routes=FakeRoutes(connected=devices)))
    (found,) = predictor.predict(PathQuery(POD, 0, to, 80))
    return with_other_datapaths(attribute_path(found, view), OtherDatapaths(devices, programs or {}, unread), view)


def test_pods_behind_open_vswitch() -> None:
    found = path(GATEWAY, objects=cluster(*PODS, policy("shop/deny-all")))
    assert found.packet.outcome is Outcome.UNKNOWN
    assert found.packet.verdict == (
        "not known: Open vSwitch behind antrea-gw0 decides, too; by netfilter alone: forwarded to antrea-gw0"
    )
    assert found.notes == (
        "The flows of Open vSwitch are not seen, so the policy, if one decides, is unknown: candidate is NetworkPolicy"
        " shop/deny-all (ingress of web), which by the objects of the API does not allow it.",
        "NetworkPolicy shop/deny-all, ingress of pod web: it has no ingress rule",
    )


@pytest.mark.parametrize("point", list(AttachPoint))
def test_a_program_that_carries_out_policies(point: AttachPoint) -> None:
    found = path(LXC, {("lxc1", point): (CILIUM,)}, to=FAR)
    assert found.packet.outcome is Outcome.UNKNOWN
    assert found.packet.verdict == (
        f"not known: eBPF program cil_from_container (id 42) at {point} of lxc1 (loaded by Cilium) decides, too; by netfilter"
        " alone: forwarded to eth0"
    )
    assert found.notes == (
        "What Cilium decides is in maps of its own, which are not read, so the policy, if one decides, is unknown: which"
        " NetworkPolicies select its pods is not known.",
    )


def test_the_interfaces_on_both_sides_count() -> None:
    programs = {("lxc1", AttachPoint.TC_INGRESS): (CILIUM,), ("eth0", AttachPoint.TC_EGRESS): (replace(CILIUM, number=43),)}
    found = path(LXC, programs, to=FAR)
    assert "(id 42) at tc ingress of lxc1" in found.packet.verdict and "(id 43) at tc egress of eth0" in found.packet.verdict
    assert " decide, too" in found.packet.verdict and len(found.notes) == 1


def test_what_has_no_other_data_plane_is_as_before() -> None:
    """Other programs may count or mark packets, and a program at another interface does not meet them."""
    counts = AttachedProgram("tc", 44, "sd_fw_ingress", "", "systemd", "process")
    for programs in ({("lxc1", AttachPoint.TC_INGRESS): (counts,)}, {("lxc9", AttachPoint.TC_INGRESS): (CILIUM,)}):
        found = path(LXC, programs)
        assert (found.packet.outcome, found.packet.verdict, found.notes) == (Outcome.FORWARDED, "forwarded to lxc1", ())


def test_a_packet_that_a_rule_drops_is_dropped() -> None:
    assert path(GATEWAY, rules=DROPS).packet.outcome is Outcome.DROPPED


def test_programs_that_cannot_be_read_are_a_note() -> None:
    found = path(LXC, unread="Operation not permitted")
    assert found.packet.outcome is Outcome.FORWARDED
    assert found.notes == (
        "whether an eBPF program decides, too, is not known: programs could not be read (Operation not permitted)",
    )


def test_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    attached = {(1, AttachPoint.TC_EGRESS): Attached((CILIUM,)), (1 << 30, AttachPoint.XDP): Attached((CILIUM,))}
    monkeypatch.setattr(attached_programs, "read", lambda catalog: attached)
    assert OtherDatapaths.of_machine(LINKS) == OtherDatapaths(LINKS, {("lo", AttachPoint.TC_EGRESS): (CILIUM,)})

    def refuse(catalog: object) -> object:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(attached_programs, "read", refuse)
    assert OtherDatapaths.of_machine(LINKS).unread == "Operation not permitted"
