# SPDX-License-Identifier: Apache-2.0
"""Compiled programs as data: written, read, checked, and filled in for one start."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracer.kernel import bytecode
from tracer.kernel.bpf_syscall import MapDefinition
from tracer.kernel.bytecode import BadBytecode, Bytecode, call_number, joined, linked, load_constant

EVENTS, FILLS = MapDefinition("events", 27, 0, 0, 4096, 0), MapDefinition("fills", 2, 4, 16, 1, 1024)
EXIT = struct.pack("<BBhi", 0x95, 0, 0, 0)


def load_map(index: int, register: int = 1) -> bytes:
    return struct.pack("<BBhi", 0x18, 1 << 4 | register, 0, index) + bytes(8)


def load_number(value: int, register: int = 2) -> bytes:
    low, high = value & 0xFFFFFFFF, value >> 32
    return struct.pack("<BBhI", 0x18, register, 0, low) + struct.pack("<BBhI", 0, 0, 0, high)


def call(number: int, own: bool = False) -> bytes:
    """A call of a helper of the kernel, or of the program's own function at that distance."""
    return struct.pack("<BBhi", 0x85, 1 << 4 if own else 0, 0, number)


GOOD = Bytecode((EVENTS, FILLS), {"on_hook": load_map(1) + EXIT, "on_drop": load_number(load_constant("row")) + EXIT})


def test_written_and_read() -> None:
    assert Bytecode.from_bytes(GOOD.to_bytes()) == GOOD


@given(st.binary(max_size=200))
def test_anything_else_is_refused(data: bytes) -> None:
    with pytest.raises(BadBytecode):
        Bytecode.from_bytes(data)


@given(st.integers(0, len(GOOD.to_bytes()) - 1), st.integers(1, 255))
def test_a_changed_byte_is_refused_or_checked(at: int, change: int) -> None:
    """Never another exception, and never an instruction that names a map that does not exist."""
    data = bytearray(GOOD.to_bytes())
    data[at] ^= change
    try:
        found = Bytecode.from_bytes(bytes(data))
    except BadBytecode:
        return
    found.check()
    for code in found.programs.values():
        linked(code, list(range(len(found.maps))), {})


@pytest.mark.parametrize(
    ("maps", "programs"),
    [((EVENTS,), {"p": load_map(1) + EXIT}), ((EVENTS,), {"p": load_map(-1) + EXIT}), ((EVENTS,), {"p": EXIT[:-1]}),
     ((EVENTS,), {"p": load_map(0)[:8]}), ((EVENTS,), {"p": b""}), ((EVENTS, EVENTS), {"p": EXIT}),
     (tuple(MapDefinition(str(n), 2, 4, 4, 1, 0) for n in range(bytecode.MAX_MAPS + 1)), {"p": EXIT}),
     ((), {str(n): EXIT for n in range(bytecode.MAX_PROGRAMS + 1)}), ((), {"p": EXIT * (bytecode.MAX_INSTRUCTIONS + 1)})],
    ids=["no such map", "negative map", "half an instruction", "half a load", "empty", "twice", "maps", "programs", "too long"],
)  # fmt: skip
def test_bad_programs(maps: tuple[MapDefinition, ...], programs: dict[str, bytes]) -> None:
    with pytest.raises(BadBytecode):
        Bytecode.from_bytes(Bytecode(maps, programs).to_bytes())


def test_linked() -> None:
    value = 0xFFFFFFFFC0400010
    code = load_map(1) + load_number(load_constant("address of x")) + load_number(7) + load_number(load_constant("row")) + EXIT
    assert linked(code, [11, 12], {"address of x": value, "row": 3}) == (
        load_map(12) + load_number(value) + load_number(7) + load_number(3) + EXIT
    )


def test_a_constant_without_a_value_stays() -> None:
    code = load_number(load_constant("address of x"))
    assert linked(code, [], {"row": 3}) == code


def test_functions_are_appended_once_and_called_by_their_distance() -> None:
    functions = {"inner": load_map(1) + EXIT, "outer": call(call_number("inner")) + load_number(load_constant("row")) + EXIT}
    code = call(1) + call(call_number("outer")) + call(call_number("inner")) + call(call_number("outer")) + EXIT
    assert linked(code, [11, 12], {"row": 3}, functions | {"on_hook": code}) == (
        call(1) + call(3, own=True) + call(6, own=True) + call(1, own=True) + EXIT
        + call(3, own=True) + load_number(3) + EXIT
        + load_map(12) + EXIT
    )  # fmt: skip


def test_a_function_that_calls_itself_is_appended_once() -> None:
    function = call(call_number("f")) + EXIT
    assert linked(function, [], {}, {"f": function}) == call(1, own=True) + EXIT + call(-1, own=True) + EXIT


def test_functions_of_the_kernel_are_called_by_their_btf_number() -> None:
    """Source register 2, in the program and in the functions behind it."""
    f = call(call_number("bpf_rdonly_cast")) + EXIT
    code = call(1) + call(call_number("f")) + call(call_number("bpf_rdonly_cast")) + EXIT
    of_kernel = struct.pack("<BBhi", 0x85, 2 << 4, 0, 4711)
    found = linked(code, [], {}, {"f": f}, {"bpf_rdonly_cast": 4711})
    assert found == call(1) + call(2, own=True) + of_kernel + EXIT + of_kernel + EXIT
    assert linked(f, [], {}, {}) == f


def test_numbers_of_functions_are_no_helpers() -> None:
    found = {call_number(name) for name in ("parse_header_direct", "parse_header_copied", "track_by_header_direct")}
    assert len(found) == 3 and all(1 << 30 <= number < 1 << 31 for number in found)


def test_constants_need_64_bits_and_differ() -> None:
    """Smaller ones would not be loaded by the instruction that is looked for."""
    found = {load_constant(name) for name in ("row", "address of vmemmap_base", "address of page_offset_base")}
    assert len(found) == 3 and min(found) >> 63 == 1


def test_joined_parts_have_one_set_of_maps() -> None:
    one = Bytecode((EVENTS, FILLS), {"a": load_map(0) + load_map(1) + EXIT})
    other = Bytecode((FILLS, EVENTS), {"b": load_map(0) + load_map(1) + EXIT})
    both = joined([one, other])
    assert both.maps == (EVENTS, FILLS)
    assert both.programs == {"a": load_map(0) + load_map(1) + EXIT, "b": load_map(1) + load_map(0) + EXIT}
