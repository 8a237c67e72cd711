# SPDX-License-Identifier: Apache-2.0
"""How programs read kernel memory: by the kernel's cast where it has one, else by the helper."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from tests.support import recorded_kernels
from tracer.kernel import kernel_memory
from tracer.kernel.btf import FUNC, STRUCT, KernelTypes
from tracer.kernel.bytecode import call_number, linked, load_constant

NUMBERS = {("bpf_rdonly_cast", FUNC): 4711, ("pt_regs", STRUCT): 12}


def types(*missing: str) -> KernelTypes:
    """A kernel's BTF with the function and the structure, except those."""

    def find(name: str, kind: int) -> SimpleNamespace | None:
        return SimpleNamespace(number=NUMBERS[name, kind]) if name not in missing else None

    return cast(KernelTypes, SimpleNamespace(vmlinux=SimpleNamespace(find=find)))


@pytest.mark.parametrize(("kernel", "casts"), [("5.10", False), ("6.1", False), ("6.12", True), ("7.2", True)])
def test_the_cast_is_used_where_the_kernel_has_it(kernel: str, casts: bool) -> None:
    text = kernel_memory.header(recorded_kernels.kernel(recorded_kernels.load(kernel)).types)
    assert bool(text) == casts
    assert (f"#define CALL_bpf_rdonly_cast {call_number('bpf_rdonly_cast'):#x}ULL\n" in text) == casts


def test_the_numbers_are_those_of_this_kernel() -> None:
    assert kernel_memory.functions(types()) == {"bpf_rdonly_cast": 4711}
    load = b"\x18\1\0\0" + (load_constant("type of pt_regs") & 0xFFFFFFFF).to_bytes(4, "little")
    load += b"\0\0\0\0" + (load_constant("type of pt_regs") >> 32).to_bytes(4, "little")
    assert linked(load, [], kernel_memory.constants(types())) == b"\x18\1\0\0\x0c\0\0\0" + bytes(8)


def test_a_kernel_without_them() -> None:
    assert kernel_memory.functions(types("bpf_rdonly_cast")) == {}
    assert kernel_memory.constants(types("pt_regs")) == {}
