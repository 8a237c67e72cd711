# SPDX-License-Identifier: Apache-2.0
"""Compiled programs as data: their instructions, and the maps and constants that are filled in when they are loaded.

An instruction has 8 bytes (include/uapi/linux/bpf.h). The load of a 64-bit constant takes two; with source register 1 it is
the load of a map, and the constant is a file descriptor. Here it is the index of the map.

A value that is known only at the start (an address of the kernel, the number of a row) is compiled as a constant that stands
for its name (load_constant). `linked` replaces it.

Large functions are compiled once, as if they were programs, and called by a number that stands for the name (call_number).
`linked` appends those that a program calls, and makes the number the distance to the function, as the kernel expects it. A
function of the kernel is called in the same way; its number becomes that of its BTF.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tracer.kernel.bpf_syscall import MapDefinition

LICENCE = "GPL"
"""The licence that bpf/tracer.c gives its programs."""

MAX_MAPS, MAX_PROGRAMS, MAX_INSTRUCTIONS = 64, 1024, 1 << 20
"""Bounds of what is read."""

_SLOT = 8
_LOAD_64 = 0x18
_CALL, _CALL_OF_FUNCTION, _CALL_OF_KERNEL = 0x85, 1, 2
"""Operation of a call, and its source register where it is a call of the program's own function, or of the kernel's function
with that BTF number.
"""
_MAP_REGISTER = 1
_HEAD = struct.Struct("<I")


class BadBytecode(ValueError):
    """Data that are no compiled programs."""


def load_constant(name: str) -> int:
    """The 64-bit constant that stands for a value of that name in compiled instructions."""
    return int.from_bytes(hashlib.sha256(f"k8snet-trace {name}".encode()).digest()[:8], "little") | 1 << 63


def call_number(name: str) -> int:
    """The number that stands for a function of that name in a compiled call: far above those of the kernel's helpers."""
    return int.from_bytes(hashlib.sha256(f"k8snet-trace function {name}".encode()).digest()[:4], "little") >> 2 | 1 << 30


@dataclass(frozen=True)
class Bytecode:
    """Compiled programs.

    Attributes:
        maps: The maps, in the order of their indices.
        programs: Instructions by name of the program.
    """

    maps: tuple[MapDefinition, ...]
    programs: Mapping[str, bytes]

    def to_bytes(self) -> bytes:
        """The programs as bytes, for from_bytes()."""
        head = {
            "maps": [[m.name, m.type, m.key_bytes, m.value_bytes, m.entries, m.flags] for m in self.maps],
            "programs": [[name, len(code)] for name, code in self.programs.items()],
        }
        return with_head(head, b"".join(self.programs.values()))

    @classmethod
    def from_bytes(cls, data: bytes) -> Bytecode:
        """Reads what to_bytes() wrote.

        Raises:
            BadBytecode: The data are anything else.
        """
        head, code = split_head(data)
        try:
            maps = tuple(MapDefinition(_text(name), *map(_number, rest)) for name, *rest in head["maps"])
            sizes = [(_text(name), _number(size)) for name, size in head["programs"]]
        except (ValueError, TypeError, KeyError) as e:
            raise BadBytecode(f"its head is damaged ({type(e).__name__})") from e
        at, programs = 0, {}
        for name, size in sizes:
            programs[name] = code[at : at + size]
            at += size
        if at != len(code) or len(programs) != len(sizes):
            raise BadBytecode("its length is wrong")
        found = cls(maps, programs)
        found.check()
        return found

    def check(self) -> None:
        """Checks sizes, and that every instruction that loads a map names one of the maps.

        Raises:
            BadBytecode: Something is not as it must be.
        """
        instructions = sum(map(len, self.programs.values())) // _SLOT
        if len(self.maps) > MAX_MAPS or len(self.programs) > MAX_PROGRAMS or instructions > MAX_INSTRUCTIONS:
            raise BadBytecode("it is too large")
        if len({m.name for m in self.maps}) != len(self.maps):
            raise BadBytecode("two maps have one name")
        for code in self.programs.values():
            if not code or len(code) % _SLOT:
                raise BadBytecode("an instruction is cut off")
            for at in _long_loads(code):
                if code[at + 1] >> 4 == _MAP_REGISTER and not 0 <= _first_half(code, at) < len(self.maps):
                    raise BadBytecode("an instruction names a map that does not exist")


def with_head(head: object, content: bytes) -> bytes:
    """Bytes with a description before them, for split_head(). head: data for JSON."""
    text = json.dumps(head).encode()
    return _HEAD.pack(len(text)) + text + content


def split_head(data: bytes) -> tuple[Any, bytes]:
    """The description and the bytes that with_head() joined; the description may be any data of JSON.

    Raises:
        BadBytecode: There is no description.
    """
    try:
        (length,) = _HEAD.unpack_from(data)
        return json.loads(data[_HEAD.size : _HEAD.size + length]), data[_HEAD.size + length :]
    except (struct.error, ValueError, RecursionError) as e:
        raise BadBytecode(f"its head is damaged ({type(e).__name__})") from e


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _number(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 32:
        raise TypeError
    return value


def _first_half(code: bytes | bytearray, at: int) -> int:
    return int(struct.unpack_from("<i", code, at + 4)[0])


def _long_loads(code: bytes | bytearray) -> list[int]:
    """Offsets of the loads of 64-bit constants, bytes.

    Raises:
        BadBytecode: The last one is cut off.
    """
    operations, found = bytes(code[::_SLOT]), []
    at = operations.find(_LOAD_64)
    while at >= 0:
        if at + 2 > len(operations):
            raise BadBytecode("an instruction is cut off")
        found.append(at * _SLOT)
        at = operations.find(_LOAD_64, at + 2)
    return found


def linked(
    code: bytes,
    maps: Sequence[int],
    constants: Mapping[str, int],
    functions: Mapping[str, bytes] | None = None,
    of_kernel: Mapping[str, int] | None = None,
) -> bytes:
    """The instructions of a program with its functions, with descriptors of maps and with the values of constants.

    Args:
        code: As in Bytecode.programs.
        maps: Descriptors by index of the map.
        constants: Values by name.
        functions: As Bytecode.programs: what the program may call.
        of_kernel: BTF numbers of the kernel's functions that the program may call, by name.
    """
    values = {load_constant(name): value for name, value in constants.items()}
    out = _with_functions(code, functions or {})
    _call_kernel(out, of_kernel or {})
    for at in _long_loads(out):
        if out[at + 1] >> 4 == _MAP_REGISTER:
            struct.pack_into("<i", out, at + 4, maps[_first_half(out, at)])
        elif out[at + 1] >> 4 == 0:
            low, high = struct.unpack_from("<I", out, at + 4)[0], struct.unpack_from("<I", out, at + _SLOT + 4)[0]
            value = values.get(high << 32 | low)
            if value is not None:
                struct.pack_into("<I", out, at + 4, value & 0xFFFFFFFF)
                struct.pack_into("<I", out, at + _SLOT + 4, value >> 32)
    return bytes(out)


def _with_functions(code: bytes, functions: Mapping[str, bytes]) -> bytearray:
    """The instructions of a program, and behind them once each function that it calls, directly or through another one."""
    names = {call_number(name): name for name in functions}
    out = bytearray(code)
    places: dict[str, int] = {}
    at = 0
    while at < len(out):
        # The second half of a long load has operation 0.
        if out[at] == _CALL and out[at + 1] >> 4 == 0 and (name := names.get(_first_half(out, at))):
            if name not in places:
                places[name] = len(out)
                out += functions[name]
            out[at + 1] |= _CALL_OF_FUNCTION << 4
            struct.pack_into("<i", out, at + 4, (places[name] - at) // _SLOT - 1)
        at += _SLOT
    return out


def _call_kernel(code: bytearray, numbers: Mapping[str, int]) -> None:
    """Fills in the BTF numbers of the kernel's functions in calls of them."""
    values = {call_number(name): number for name, number in numbers.items()}
    for at in range(0, len(code), _SLOT) if values else ():
        if code[at] == _CALL and code[at + 1] >> 4 == 0 and (number := values.get(_first_half(code, at))):
            code[at + 1] |= _CALL_OF_KERNEL << 4
            struct.pack_into("<i", code, at + 4, number)


def with_indices(code: bytes, indices: Mapping[int, int]) -> bytes:
    """The instructions with indices of maps. indices: by the number in the instruction, a descriptor or another index."""
    out = bytearray(code)
    for at in _long_loads(code):
        if code[at + 1] >> 4 == _MAP_REGISTER:
            struct.pack_into("<i", out, at + 4, indices[_first_half(code, at)])
    return bytes(out)


def joined(parts: Sequence[Bytecode]) -> Bytecode:
    """The programs of several compilations of one text, with one set of maps."""
    maps = {m.name: m for part in parts for m in part.maps}
    order = {name: index for index, name in enumerate(maps)}
    programs = {}
    for part in parts:
        indices = {index: order[m.name] for index, m in enumerate(part.maps)}
        programs.update({name: with_indices(code, indices) for name, code in part.programs.items()})
    return Bytecode(tuple(maps.values()), programs)
