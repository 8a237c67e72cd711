# SPDX-License-Identifier: Apache-2.0
"""The virtual machine's command line, and its status lines."""

from __future__ import annotations

import itertools
from pathlib import Path

from lab import boot, qemu
from lab.qemu import Accel, Machine, Wires

MACHINE = Machine(
    name="lab-6.1",
    kernel=Path("/k/vmlinux"),
    initrd=Path("/t/initrd"),
    root=Path("/c/ro,ot"),
    modules=Path("/k/modules"),
    accel=Accel("tcg", 2_400_000),
    memory=1024,
    cpus=3,
    append="quiet",
)


WIRES = Wires(status=10, output=(11, 12), console=Path("/t/console"), share=Path("/t/share"))


def values(argv: list[str], option: str) -> list[str]:
    """All values of an option."""
    return [value for name, value in itertools.pairwise(argv) if name == option]


def test_command_line_of_an_emulated_machine() -> None:
    argv = qemu.command_line(MACHINE, WIRES)
    assert values(argv, "-accel")[0].startswith("tcg,")
    assert "cx16=off" in values(argv, "-cpu")[0].split(",")
    assert {"la57=off", "avx2=off"} <= set(values(argv, "-cpu")[0].split(","))
    root, modules = values(argv, "-drive")
    assert "file=/c/ro,,ot," in root
    assert "snapshot=on" in root
    assert "readonly=on" in modules
    assert (values(argv, "-m"), values(argv, "-smp")) == (["1024"], ["3"])
    assert "-no-reboot" in argv
    kernel = values(argv, "-append")[0].split()
    assert {"tsc=reliable", "tsc_early_khz=2400000", "panic=-1", "quiet"} <= set(kernel)
    assert values(argv, "-add-fd") == ["fd=10,set=10", "fd=11,set=11", "fd=12,set=12"]
    assert "memory-backend-memfd,id=mem,size=1024M,share=on" in argv
    assert any("tag=share" in value for value in values(argv, "-device"))


def test_command_line_with_kvm_without_share_interactive() -> None:
    machine = Machine(**{**vars(MACHINE), "accel": Accel("kvm")})
    argv = qemu.command_line(machine, Wires(10, None, Path("/t/console"), None))
    assert values(argv, "-accel") == ["kvm"]
    assert "tsc" not in values(argv, "-append")[0]
    assert "stdio,id=console,signal=off" in argv
    assert values(argv, "-add-fd") == ["fd=10,set=10"]
    assert "memory-backend" not in " ".join(argv)


def test_status_lines() -> None:
    status = boot.Status()
    status.feed(b"boot 4.")
    assert status.booted is None
    status.feed(b"25\nnonsense\n\nstat")
    status.feed(b"us 7\n")
    assert vars(status) == {"booted": 4.25, "status": 7, "done": False, "_rest": b""}
    status.feed(b"done\n")
    assert status.done
