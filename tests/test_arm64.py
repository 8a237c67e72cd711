"""The BPF text compiles for arm64 too, as bcc compiles for another machine, and finds arguments where arm64 has them."""

from __future__ import annotations

import copy
import json
import os
import re
import struct
import subprocess
from pathlib import Path

import pytest

from tests import recorded_kernels
from tracer import bpf_text
from tracer.kernel import acts, headers, plan

ROOT = Path(__file__).resolve().parent.parent
PYTHON = "/usr/bin/python3"
"""That of the distribution, which has bcc where this one may not."""
REGISTERS = {"regs": [0, 248, 3, "", 0, 0, 8], "sp": [248, 8, 1, "", 0, 0, 0], "pc": [256, 8, 1, "", 0, 0, 0]}
LOAD = 0x79
COMPILE = """
import json, os, sys
from tracer.kernel import program
os.environ["ARCH"] = sys.argv[1]
compiled = program.Program(program.load_bcc(), json.load(sys.stdin))
print(json.dumps({name: compiled.bpf.dump_func(name.encode()).hex() for name in sys.argv[2:]}))
compiled.close()
"""


def texts() -> dict[str, str]:
    """The generated headers for 6.12 with arm64's registers, all arguments in them."""
    data = copy.deepcopy(recorded_kernels.load("6.12"))
    data["structures"]["pt_regs"] = ["vmlinux", 336, REGISTERS]
    k, can = recorded_kernels.kernel(data), plan.Abilities(fentry=False, module_fentry=False)
    planned, refused = plan.plan(k.types, k.symbols, can, verbose=True)
    assert not refused
    return headers.headers(k.types, k.symbols, planned, acts.plan(k.types, k.symbols, can), 4096, 2)


def has_bcc() -> bool:
    """Whether it can be compiled here: bcc makes the maps meanwhile, which only root may."""
    return os.geteuid() == 0 and subprocess.run([PYTHON, "-c", "import bcc"], capture_output=True).returncode == 0


def loads(code: str) -> set[int]:
    """Offsets from which 8 bytes are loaded by way of a program's first argument, before anything is called."""
    found = set()
    for opcode, _registers, offset, _ in struct.iter_unpack("<BBhi", bytes.fromhex(code)):
        if opcode == 0x85:
            break
        if opcode == LOAD:
            found.add(offset)
    return found


def test_it_compiles() -> None:
    if not has_bcc():
        pytest.skip("no bcc here, or not root")
    command = [PYTHON, "-c", COMPILE, "arm64", "on_synack4", "on_unreach4"]
    ran = subprocess.run(command, input=json.dumps(texts()), capture_output=True, text=True, cwd=ROOT)
    assert ran.returncode == 0, ran.stderr
    code = json.loads(ran.stdout)
    assert 6 * 8 in loads(code["on_synack4"]), "the seventh argument is in x6"
    assert {0, 8} <= loads(code["on_unreach4"]), "the first two are in x0 and x1"


def test_registers_are_named_in_one_place() -> None:
    """Elsewhere arguments come through PT_REGS_PARM and the like, which know the machine."""
    for path in bpf_text.directory().glob("*.h"):
        named = re.findall(r"ctx->(\w+)", path.read_text())
        assert not named or path.name == "probe.h", f"{path.name}: {named}"
