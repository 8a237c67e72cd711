# SPDX-License-Identifier: Apache-2.0
"""Reads programs at interfaces of a new network namespace, from the kernel that runs the tests."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Callable
from contextlib import suppress

import pytest

from tests.support import bpf_programs
from tests.support.bpf_programs import SCHED_CLS, XDP
from tracer.kernel import attached_programs, bpf_syscall
from tracer.kernel.attached_programs import Attached, Place, ProgramCatalog
from tracer.model.bpf_program import AttachedProgram, AttachPoint, ProgramKind
from tracer.node import netns

Found = dict[Place, Attached]


def inside(work: Callable[[], None]) -> None:
    """Calls `work` in a new namespace with the interfaces v0 and v1; skips the test where that is not allowed."""

    def prepared() -> None:
        subprocess.run("ip link add v0 type veth peer name v1", shell=True, check=True, capture_output=True)
        bpf_programs.clsact("v0")
        bpf_programs.load("probe", SCHED_CLS, 1).close()

    def run() -> None:
        try:
            prepared()
        except (OSError, subprocess.CalledProcessError) as e:
            pytest.skip(f"no programs at interfaces here: {e}")
        work()

    try:
        netns.inside_new(run)
    except PermissionError as e:
        pytest.skip(f"no new network namespace here: {e}")


def at(found: Found, point: AttachPoint) -> list[tuple[str, int]]:
    attached = found.get((socket.if_nametoindex("v0"), point), Attached())
    return [(each.kind, each.number) for each in attached.programs]


def test_programs_of_tc_and_xdp_are_read() -> None:
    def work() -> None:
        catalog = ProgramCatalog()
        assert attached_programs.read(catalog) == {}
        one, two, three = (bpf_programs.load(f"cil_{n}", SCHED_CLS, 9) for n in ("in", "in2", "out"))
        bpf_programs.attach_tc("v0", two, preference=20)
        bpf_programs.attach_tc("v0", one, preference=10)
        bpf_programs.attach_tc("v0", three, bpf_programs.EGRESS)
        xdp = bpf_programs.load("xdp_filter", XDP, 9)
        bpf_programs.attach_xdp("v0", xdp)
        found = attached_programs.read(catalog)
        assert at(found, AttachPoint.TC_INGRESS) == [("tc", one.number), ("tc", two.number)], "in the order of preference"
        assert at(found, AttachPoint.TC_EGRESS) == [("tc", three.number)]
        assert at(found, AttachPoint.XDP) == [("XDP generic", xdp.number)]
        assert len(found) == 3, "nothing at other interfaces"
        (first, _) = found[socket.if_nametoindex("v0"), AttachPoint.TC_INGRESS].programs
        assert (first.name, first.loader, first.loader_evidence, len(first.tag)) == ("cil_in", "Cilium", "name", 16)
        bpf_programs.detach_tc("v0", preference=10)
        bpf_programs.attach_xdp("v0", None)
        found = attached_programs.read(catalog)
        assert at(found, AttachPoint.TC_INGRESS) == [("tc", two.number)] and not at(found, AttachPoint.XDP)

    inside(work)


def test_programs_of_tcx_come_before_filters() -> None:
    def work() -> None:
        tcx = bpf_programs.load("tcx_one", SCHED_CLS, 9, attach_type=bpf_syscall.TCX_INGRESS)
        try:
            bpf_programs.attach_tcx("v0", tcx)
        except OSError as e:
            pytest.skip(f"no tcx here: {e}")
        filtered = bpf_programs.load("tc_one", SCHED_CLS, 9)
        bpf_programs.attach_tc("v0", filtered)
        found = attached_programs.read(ProgramCatalog())
        assert at(found, AttachPoint.TC_INGRESS) == [("tcx", tcx.number), ("tc", filtered.number)]
        attached = found[socket.if_nametoindex("v0"), AttachPoint.TC_INGRESS]
        assert attached.revision > 0, "tcx counts its changes"

    inside(work)


def test_the_whole_name_of_a_program() -> None:
    """The kernel keeps 15 bytes of it; its BTF has the rest."""

    def work() -> None:
        fd = bpf_programs.load_described("cil_from_container_of_pods")
        number = bpf_syscall.program_info(fd).number
        found = ProgramCatalog().describe([AttachedProgram("tc", number)])
        assert found[number].name == "cil_from_container_of_pods" and bpf_syscall.program_info(fd).name == b"cil_from_contai"

    inside(work)


def test_native_xdp_of_veth() -> None:
    def work() -> None:
        xdp = bpf_programs.load("xdp_native", XDP, 9)
        bpf_programs.attach_xdp("v0", xdp, bpf_programs.NATIVE)
        assert at(attached_programs.read(ProgramCatalog()), AttachPoint.XDP) == [("XDP native", xdp.number)]

    inside(work)


def test_a_filter_without_a_program_may_drop_too() -> None:
    def work() -> None:
        command = "tc filter add dev v0 ingress pref 7 protocol ip u32 match u32 0 0 classid 1:1"
        if subprocess.run(command, shell=True, capture_output=True, check=False).returncode:
            pytest.skip("this kernel has no u32 filter")
        attached = attached_programs.read(ProgramCatalog())[socket.if_nametoindex("v0"), AttachPoint.TC_INGRESS]
        assert attached.programs == (AttachedProgram(ProgramKind.TC_FILTER, 0, "u32 pref 7"),)

    inside(work)


def test_the_ids_of_an_interface_that_does_not_exist() -> None:
    with suppress(PermissionError):
        assert attached_programs._tcx(1 << 30, bpf_syscall.TCX_INGRESS) == bpf_syscall.AttachedIds()
