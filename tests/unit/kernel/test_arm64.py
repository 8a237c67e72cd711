# SPDX-License-Identifier: Apache-2.0
"""The BPF text compiles for arm64 too, as bcc compiles for another machine, and reads arguments from arm64's registers."""

from __future__ import annotations

import copy
import re
import struct

from tests.support import recorded_kernels
from tests.support.compiling import compiled
from tracer.events import bpf_source
from tracer.kernel import attach_plan, generated_headers, xt_extensions

REGISTERS = {"regs": [0, 248, 3, "", 0, 0, 8], "sp": [248, 8, 1, "", 0, 0, 0], "pc": [256, 8, 1, "", 0, 0, 0]}
LOAD = 0x79


def texts() -> dict[str, str]:
    """The generated headers for 6.12 with arm64's registers, all arguments in them."""
    data = copy.deepcopy(recorded_kernels.load("6.12"))
    data["structures"]["pt_regs"] = ["vmlinux", 336, REGISTERS]
    k, can = recorded_kernels.kernel(data), attach_plan.KernelAbilities(fentry=False, module_fentry=False)
    planned, refused = attach_plan.plan(k.types, k.symbols, can, verbose=True, lookups=True, programs=True)
    assert not refused
    return generated_headers.headers(k.types, k.symbols, planned, xt_extensions.plan(k.types, k.symbols, can), 4096, 2)


def loads(code: str) -> set[int]:
    """Offsets from which 8 bytes are loaded through a program's first argument, before the first call."""
    found = set()
    for opcode, _registers, offset, _ in struct.iter_unpack("<BBhi", bytes.fromhex(code)):
        if opcode == 0x85:
            break
        if opcode == LOAD:
            found.add(offset)
    return found


def test_it_compiles() -> None:
    code = compiled(texts(), "arm64", "on_synack4", "on_unreach4")
    assert 6 * 8 in loads(code["on_synack4"]), "the seventh argument is in x6"
    assert {0, 8} <= loads(code["on_unreach4"]), "the first two are in x0 and x1"


def test_registers_are_named_in_one_place() -> None:
    """Other files read arguments with PT_REGS_PARM and similar macros, which know the machine."""
    for path in bpf_source.directory().glob("[!s]*/*.h"):
        named = re.findall(r"ctx->(\w+)", path.read_text())
        assert not named or path.name == "probe.h", f"{path.name}: {named}"
