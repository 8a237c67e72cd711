# SPDX-License-Identifier: Apache-2.0
"""How programs read kernel memory at an address that is a number for the verifier.

A helper copies it (bpf_probe_read_kernel): about 110 instructions a call. Where the kernel has bpf_rdonly_cast (6.2:
kernel commit a35b9af4ec2c, "bpf: Add a kfunc for generic type cast"), the address becomes a pointer to a structure, of which
the programs load words: 8 instructions each. The verifier checks offsets against the structure, so it is one that begins with
many plain words, whatever is read. Such a load gives 0 where the address is not readable.
"""

from __future__ import annotations

from tracer.kernel.btf import FUNC, STRUCT, KernelTypes
from tracer.kernel.bytecode import call_number, load_constant

CAST = "bpf_rdonly_cast"
WORDS_OF = "pt_regs"
"""The structure: x86 has 15 words before the first one that is a union, arm64 31."""
_TYPE = f"type of {WORDS_OF}"


def header(types: KernelTypes) -> str:
    """A part of structs.h: the numbers that stand for function and structure; "" = the kernel has no such function."""
    if types.vmlinux.parameters(CAST) is None or types.vmlinux.structure_size(WORDS_OF) is None:
        return ""
    return f"#define CALL_{CAST} {call_number(CAST):#x}ULL\n#define TYPE_OF_WORDS load_constant({load_constant(_TYPE):#x}ULL)\n"


def functions(types: KernelTypes) -> dict[str, int]:
    """The BTF number of the function by its name; {} = the kernel has no such function."""
    found = types.vmlinux.find(CAST, FUNC)
    return {CAST: found.number} if found else {}


def constants(types: KernelTypes) -> dict[str, int]:
    """The BTF number of the structure, by the name of the constant that stands for it."""
    found = types.vmlinux.find(WORDS_OF, STRUCT)
    return {_TYPE: found.number} if found else {}
