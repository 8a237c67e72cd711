# SPDX-License-Identifier: Apache-2.0
"""The programs compile with any set of loaded modules: none of netfilter, only nftables, only iptables, all."""

from __future__ import annotations

import struct

import pytest

from tests.support import recorded_kernels
from tests.support.compiling import compiled
from tests.support.recorded_kernels import Data
from tracer.kernel import attach_plan, generated_headers, kernel_memory, xt_extensions
from tracer.kernel.attach_plan import PlannedProbe, UnavailableProbe
from tracer.kernel.bytecode import MAX_MAPS, linked

ONLY = {
    "nothing": set[str](),
    "nftables": {"nfnetlink", "nf_tables", "nf_conntrack"},
    "iptables": {"x_tables", "ip_tables", "ip6_tables"},
}
CASES = [("5.10", "nothing"), ("6.1", "nothing"), ("7.2", "nothing"), *(("6.12", loaded) for loaded in ONLY)]


CAN = attach_plan.KernelAbilities(fentry=True, module_fentry=True)


def planned(
    data: Data, can: attach_plan.KernelAbilities = CAN
) -> tuple[list[PlannedProbe], list[UnavailableProbe], dict[str, str]]:
    """The rows that run on a recorded kernel, the rows that do not run, and the generated headers."""
    k = recorded_kernels.kernel(data)
    rows, refused = attach_plan.plan(k.types, k.symbols, can, verbose=True, lookups=True, programs=True)
    return (
        rows,
        refused,
        generated_headers.headers(k.types, k.symbols, rows, xt_extensions.plan(k.types, k.symbols, can), 256, 2),
    )


@pytest.mark.parametrize(("kernel", "loaded"), CASES)
def test_it_compiles_with_only(kernel: str, loaded: str) -> None:
    data = recorded_kernels.load(kernel)
    modules = {module for homes in data["functions"].values() for module in homes} - {"vmlinux"}
    rows, refused, texts = planned(recorded_kernels.without(data, *(modules - ONLY[loaded])))
    assert {"hook", "drop", "socket"} <= {row.probe.name for row in rows}
    missing = {r.probe.module for r in refused if not r.probe.lookups}
    assert missing and missing.isdisjoint({"", *ONLY[loaded]})
    compiled(texts, "x86")


def calls(code: bytes) -> set[int]:
    """Numbers of the functions that the code calls by their names."""
    instructions = [struct.unpack_from("<BBhi", code, at) for at in range(0, len(code), 8)]
    return {
        number for operation, registers, _, number in instructions if (operation, registers) == (0x85, 0) and number >= 1 << 30
    }


def kernel_calls(code: bytes) -> bool:
    """Whether the code calls a function of the kernel."""
    return any(code[at] == 0x85 and code[at + 1] >> 4 == 2 for at in range(0, len(code), 8))


@pytest.mark.parametrize("kernel", ["5.10", "6.12"])
@pytest.mark.parametrize("ways", ["fentry", "fentry of vmlinux", "kprobe"])
def test_it_compiles_with_all(kernel: str, ways: str) -> None:
    can = attach_plan.KernelAbilities(fentry=ways != "kprobe", module_fentry=ways == "fentry")
    rows, refused, texts = planned(recorded_kernels.load(kernel), can)
    assert not refused or kernel != "6.12"
    header = texts["plan.h"]
    functions = [f"{name}_{copy}" for name in attach_plan.FUNCTIONS for copy in attach_plan.COPIES]
    functions = [name for name in functions if f"#define {name.rpartition('_')[2].upper()}_FUNCTIONS" in header]
    programs = sorted({program for row in rows for program, _ in row.programs})
    found = {name: bytes.fromhex(code) for name, code in compiled(texts, "x86", *programs, *functions).items()}
    assert calls(found["on_hook"]), "it has the large functions not in itself"
    for name in programs:
        code = linked(found[name], range(MAX_MAPS), {}, found, {kernel_memory.CAST: 1})
        assert not calls(code), f"{name}: each function that it calls exists"
    casts = kernel_calls(linked(found["on_hook"], range(MAX_MAPS), {}, found, {kernel_memory.CAST: 1}))
    assert casts == (kernel == "6.12" and ways != "kprobe")
    assert len(linked(found["on_hook"], range(MAX_MAPS), {}, found)) > 8 * 500
