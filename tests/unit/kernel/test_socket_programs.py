# SPDX-License-Identifier: Apache-2.0
"""Programs at connect() and of sk_lookup, read from the kernel that runs the tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support import bpf_programs
from tests.support.bpf_programs import SK_LOOKUP, SOCK_ADDR
from tests.unit.kernel.test_attached_programs import inside
from tests.unit.kernel.test_cgroup_programs import root
from tracer.commands import doctor
from tracer.kernel import bpf_syscall, cgroup_programs, socket_programs
from tracer.kernel.attached_programs import ProgramCatalog
from tracer.kernel.bpf_syscall import CONNECT_TYPES
from tracer.node.machine import Machine

__all__ = ["root"]
OWN = Path("/proc/thread-self/ns/net")


def attach(path: Path, name: str, kind: int, attach_type: int) -> int:
    """Attaches a program; returns the descriptor that keeps it."""
    program = bpf_programs.load_passing(name, kind, attach_type)
    try:
        return bpf_programs.attach_at(path, program, attach_type)
    finally:
        os.close(program)


def at_connect(root: Path) -> list[tuple[str, str, tuple[str, ...]]]:
    found = socket_programs.at_connect(ProgramCatalog(), root)
    return [(each.program.name, each.program.cgroup, each.points) for each in found]


def test_programs_at_connect(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert at_connect(root) == []
    links = [attach(root / "upper", f"cil_sock_{n}", SOCK_ADDR, CONNECT_TYPES[n]) for n in ("connect4", "sendmsg6")]
    assert sorted(at_connect(root)) == [
        ("cil_sock_connec", "/upper", ("connect4",)),
        ("cil_sock_sendms", "/upper", ("sendmsg6",)),
    ]
    monkeypatch.setattr(cgroup_programs, "hierarchy", lambda proc: root)
    result = doctor.connect_programs(Machine())
    assert (result.state, result.status) == ("degraded", 1)
    assert result.text.startswith("may replace a Service's address, which is then in no packet, by eBPF program cil_sock_")
    assert "(connect4 of /upper, named as by Cilium)" in result.text
    for link in links:
        os.close(link)
    assert doctor.connect_programs(Machine()).state == "ok"


def test_one_program_at_two_cgroups(root: Path) -> None:
    monitored = bpf_programs.load_passing("both", SOCK_ADDR, CONNECT_TYPES["connect4"])
    links = [bpf_programs.attach_at(root / name, monitored, CONNECT_TYPES["connect4"]) for name in ("upper", "other")]
    assert sorted(at_connect(root)) == [("both", "/other", ("connect4",)), ("both", "/upper", ("connect4",))]
    for fd in (*links, monitored):
        os.close(fd)


def test_cgroups_far_below_the_root_are_not_looked_at(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = attach(root / "upper/lower", "deep", SOCK_ADDR, CONNECT_TYPES["connect4"])
    assert at_connect(root) == [("deep", "/upper/lower", ("connect4",))]
    monkeypatch.setattr(socket_programs, "LEVELS", 1)
    assert at_connect(root) == []
    os.close(link)


def test_programs_of_sk_lookup() -> None:
    def work() -> None:
        assert socket_programs.of_lookup(ProgramCatalog(), [OWN]) == []
        try:
            link = attach(OWN, "cil_lookup", SK_LOOKUP, bpf_syscall.SK_LOOKUP)
        except OSError as e:
            pytest.skip(f"no sk_lookup here: {e}")
        (found,) = socket_programs.of_lookup(ProgramCatalog(), [OWN, Path("/proc/none/ns/net")])
        assert (found.program.name, found.points) == ("cil_lookup", ("sk_lookup",))
        assert found.program.text.startswith("eBPF program cil_lookup (id ")
        os.close(link)

    inside(work)


def test_what_cannot_be_read_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refused(target: int, attach_type: int, flags: int = 0) -> bpf_syscall.AttachedIds:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(bpf_syscall, "attached_ids", refused)
    monkeypatch.setattr(cgroup_programs, "hierarchy", lambda proc: tmp_path)
    for result in (doctor.connect_programs(Machine()), doctor.lookup_programs(Machine())):
        assert (result.state, result.status) == ("degraded", 0) and result.text.endswith(": Operation not permitted")


def test_a_long_list_is_cut() -> None:
    assert doctor._listed("abc") == "a, b, c" and doctor._listed("abcdefgh") == "a, b, c, d, e, f and 2 more"
