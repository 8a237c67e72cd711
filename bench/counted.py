# SPDX-License-Identifier: Apache-2.0
"""The lab's virtual machine with a clock that counts instructions: one nanosecond of guest time per executed instruction.

The load of the host, and instructions that the emulator executes slowly, then have no effect: two runs differ by 1 %. The
machine has one CPU, so a ratio includes all work, also that of the tool's own process, and not what another CPU could do in
parallel. The clock does not show cache misses, and not that some instructions take longer than others.

    python3 bench/counted.py run --kernel 6.12 -- CMD        as vagrant/lab/lab, which does the rest
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "vagrant"))

from lab import cli, qemu

ACCEL = ["-accel", "tcg,thread=single,tb-size=512", "-icount", "shift=0"]
"""shift=0: one instruction is 2^0 ns."""
TSC_KHZ = 1_000_000
WITHOUT = ",erms=off,fsrm=off"
"""`rep movsb` would count as one instruction per byte, but a real CPU moves a cache line at a time. Without these two features
the kernel and the C library copy with ordinary moves."""

_command_line = qemu.command_line


def command_line(machine: qemu.Machine, wires: qemu.Wires, program: str = "qemu-system-x86_64") -> list[str]:
    """Replaces the lab's own command_line()."""
    argv = _command_line(replace(machine, accel=qemu.Accel("tcg", TSC_KHZ), cpus=1), wires, program)
    argv[argv.index("-cpu") + 1] += WITHOUT
    at = argv.index("-accel")
    return [*argv[:at], *ACCEL, *argv[at + 2 :]]


if __name__ == "__main__":
    os.environ["LAB_ACCEL"] = "tcg"  # otherwise the lab boots a machine to try KVM
    qemu.command_line = command_line
    sys.exit(cli.main(sys.argv[1:]))
