# SPDX-License-Identifier: Apache-2.0
"""Who loaded a program: pins, processes, names."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tracer.kernel import program_loaders
from tracer.kernel.attached_programs import ProgramCatalog
from tracer.kernel.program_loaders import by_command, by_name, by_pin, holders
from tracer.model.bpf_program import AttachedProgram

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(
    ("found", "loader"),
    [
        (by_name("cil_from_contai"), "Cilium"),
        (by_name("cali_tc_main"), "Calico"),
        (by_name("sd_fw_ingress"), "systemd"),
        (by_name("handle_ingress"), ""),
        (by_name(""), ""),
        (by_pin("/sys/fs/bpf/cilium/devices/eth0/links/cil_from_netdev"), "Cilium"),
        (by_pin("/sys/fs/bpf/tc/globals/cilium_calls_00312"), "Cilium"),
        (by_pin("/sys/fs/bpf/calico/tc/preamble"), "Calico"),
        (by_pin("/sys/fs/bpf/globals/aws/programs/web-1-default_handle_ingress"), "AWS network policy agent"),
        (by_pin("/sys/fs/bpf/mine"), ""),
        (by_command("cilium-agent"), "Cilium"),
        (by_command("systemd"), "systemd"),
        (by_command("bash"), ""),
        (by_command(""), ""),
    ],
)
def test_loaders(found: str, loader: str) -> None:
    assert found == loader


def process(proc: Path, pid: int, command: bytes, descriptors: dict[str, tuple[str, str]]) -> None:
    """A directory like /proc/PID. descriptors: what each is a link to, and its fdinfo."""
    (proc / str(pid) / "fd").mkdir(parents=True)
    (proc / str(pid) / "fdinfo").mkdir()
    (proc / str(pid) / "comm").write_bytes(command + b"\n")
    for fd, (link, info) in descriptors.items():
        os.symlink(link, proc / str(pid) / "fd" / fd)
        (proc / str(pid) / "fdinfo" / fd).write_text(info)


def test_processes_that_hold_programs_or_links(tmp_path: Path) -> None:
    process(tmp_path, 1, b"systemd", {"3": ("anon_inode:bpf-prog", "pos:\t0\nprog_type:\t8\nprog_id:\t11\n")})
    process(tmp_path, 812, b"cilium-agent", {
        "5": ("anon_inode:bpf_link", "link_type:\ttcx\nlink_id:\t4\nprog_tag:\tab\nprog_id:\t42\n"),
        "6": ("/dev/null", "prog_id:\t43\n"),
        "7": ("anon_inode:bpf-prog", "prog_id:\tx\n"),
    })  # fmt: skip
    process(tmp_path, 900, b"\xff\x1b[31m", {"5": ("anon_inode:bpf-prog", "prog_id:\t44\n")})
    (tmp_path / "self").mkdir()
    wanted = [11, 42, 43, 44, 45]
    assert holders(wanted, tmp_path) == {11: (1, "systemd"), 42: (812, "cilium-agent"), 44: (900, "\udcff\x1b[31m")}
    assert holders(wanted, tmp_path, own=812) == {11: (1, "systemd"), 44: (900, "\udcff\x1b[31m")}
    assert holders([], tmp_path) == {} and holders([11], tmp_path / "none") == {}


def test_not_more_descriptors_than_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for pid in range(1, 6):
        process(tmp_path, pid, b"p", {"3": ("anon_inode:bpf-prog", f"prog_id:\t{pid}\n")})
    monkeypatch.setattr(program_loaders, "MOST_DESCRIPTORS", 3)
    assert set(holders(range(1, 6), tmp_path)) == {1, 2, 3}


def test_files_of_pins_are_bounded_and_links_are_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cilium").mkdir()
    (tmp_path / "cilium" / "prog").touch()
    os.symlink(tmp_path, tmp_path / "cilium" / "loop")
    assert list(program_loaders._files(tmp_path)) == [str(tmp_path / "cilium" / "prog")]
    for n in range(20):
        (tmp_path / f"pin{n}").touch()
    monkeypatch.setattr(program_loaders, "MOST_PINS", 5)
    assert len(list(program_loaders._files(tmp_path))) <= 5
    assert program_loaders.pins(tmp_path) == {}, "these are no objects of bpf(2)"


PINNED = """
import subprocess, sys
from pathlib import Path
from tests.support import bpf_programs
from tracer.kernel import program_loaders
where = Path(sys.argv[1])
subprocess.run(["mount", "-t", "bpf", "bpf", str(where)], check=True)
(where / "cilium").mkdir()
program = bpf_programs.load("cil_x", bpf_programs.SCHED_CLS, 9)
bpf_programs.pin(program, where / "cilium" / "program")
found = program_loaders.pins(where)
assert found == {program.number: str(where / "cilium" / "program")}, found
"""


def test_a_pinned_program_is_found(tmp_path: Path) -> None:
    """In a mount namespace of its own, so that nothing stays."""
    command = ["unshare", "-m", sys.executable, "-c", PINNED, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    if done.returncode and "AssertionError" not in done.stderr:
        pytest.skip(f"no programs are pinned here: {done.stderr[-200:]}")
    assert done.returncode == 0, done.stderr


def test_a_pin_is_better_evidence_than_a_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {
        1: AttachedProgram("tc", 1, "cil_a"), 2: AttachedProgram("tc", 2, "cil_b"), 3: AttachedProgram("tc", 3, "cil_c"),
        4: AttachedProgram("tc", 4, "mine"), 5: AttachedProgram("tc", 5, "other"),
    }  # fmt: skip
    pins = {1: "/sys/fs/bpf/calico/x", 4: "/sys/fs/bpf/mine"}
    monkeypatch.setattr(program_loaders, "pins", lambda root: pins)
    monkeypatch.setattr(program_loaders, "holders", lambda wanted, proc, own: {2: (7, "calico-node"), 5: (8, "my-agent")})
    ProgramCatalog(tmp_path, tmp_path)._find_loaders(found)
    assert [(each.loader, each.loader_evidence) for each in found.values()] == [
        ("Calico", "pin"), ("Calico", "process"), ("Cilium", "name"), ("", ""), ("", ""),
    ]  # fmt: skip
    assert [each.origin for each in found.values()] == [
        "loaded by Calico", "loaded by Calico", "named as by Cilium", "pinned at /sys/fs/bpf/mine", "held by my-agent (pid 8)",
    ]  # fmt: skip
