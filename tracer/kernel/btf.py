# SPDX-License-Identifier: Apache-2.0
"""Reads BTF, the kernel's own description of its types: structure offsets, function prototypes, enums.

Format: Documentation/bpf/btf.rst in the kernel source. A module's BTF is "split": its type and string numbers continue those
of vmlinux. vmlinux has about 95,000 types, so only the offset of each type is computed, and the first bytes of the names
are sorted, by numpy.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from tracer.errors import NoBtf
from tracer.kernel.module_layouts_5_10 import BuiltinLayouts, Field

_Word = TypeVar("_Word", np.uint32, np.uint64)

SYS_BTF = Path("/sys/kernel/btf")

(INT, PTR, ARRAY, STRUCT, UNION, ENUM, FWD, TYPEDEF, VOLATILE, CONST, RESTRICT, FUNC, PROTO, VAR, DATASEC, FLOAT,
 DECL_TAG, TYPE_TAG, ENUM64) = range(1, 20)  # fmt: skip
_EXTRA_WORDS = np.zeros(32, np.uint32)
_EXTRA_WORDS[[INT, VAR, DECL_TAG, ARRAY]] = 1, 1, 1, 3
"""Words after the header of a type, by kind."""
_MEMBER_WORDS = np.zeros(32, np.uint32)
_MEMBER_WORDS[[STRUCT, UNION, DATASEC, ENUM64, ENUM, PROTO]] = 3, 3, 3, 3, 2, 2
"""Words of each member of a type, by kind."""
_PREFIX_BYTES = 8
"""Length of the part of a name by which types are sorted, bytes."""
_LOW_BITS, _HIGH_BITS = np.uint64(0x0101010101010101), np.uint64(0x8080808080808080)
_ONE, _SEVEN = np.uint64(1), np.uint64(7)
_STEP = 8
"""Number of types that are skipped in following the chain of types, a power of two."""
_TRANSPARENT = (TYPEDEF, VOLATILE, CONST, RESTRICT, TYPE_TAG)


@dataclass(frozen=True)
class Type:
    """One BTF type.

    Attributes:
        btf: The blob that has it.
        number: Type id.
        kind: Kind, as above.
        name: Name, "" = none.
        vlen: Number of members.
        size: Size in bytes, or id of the type it refers to.
        flag: The kind flag: offsets of members include the width of bit fields.
        at: Offset of the data after the type's header, bytes.
    """

    btf: Btf
    number: int
    kind: int
    name: str
    vlen: int
    size: int
    flag: bool
    at: int


class Btf:
    """One BTF blob. base: the BTF of vmlinux if this is the BTF of a module."""

    def __init__(self, data: bytes, base: Btf | None = None) -> None:
        if len(data) < 24 or struct.unpack_from("<H", data)[0] != 0xEB9F:
            raise NoBtf("The kernel's BTF is damaged or of another byte order.")
        _, _, _, head, type_at, type_len, str_at, str_len = struct.unpack_from("<HBBIIIII", data)
        if len(data) < head + max(type_at + type_len, str_at + str_len):
            raise NoBtf("The kernel's BTF is cut short.")
        self.base, self._data = base, data
        self._strings = data[head + str_at : head + str_at + str_len]
        self._first_string: int = base._end_string if base else 0
        self._end_string: int = self._first_string + str_len
        self._first: int = base._end if base else 0
        self._offsets = self._index(head + type_at, head + type_at + type_len)
        self._end: int = self._first + len(self._offsets)

    def _index(self, at: int, end: int) -> npt.NDArray[np.uint32]:
        """Offsets of all types, bytes. The length of a type follows from its second word.

        For every word it is computed which word would be the next type's first, if a type began there. Then only the chain
        from the first type on has to be followed: in steps of _STEP types, as each step takes as long as twenty additions of
        arrays take for a word, and then from all these at once.
        """
        words = np.frombuffer(self._data, "<u4", (end - at) // 4, at)
        info = np.append(words[1:], np.uint32(0))
        kinds, count = info >> 24 & 31, len(words)
        sizes = _EXTRA_WORDS[kinds] + _MEMBER_WORDS[kinds] * (info & 0xFFFF)
        # Behind the last type is the number of words, which leads to itself.
        following: npt.NDArray[np.intp] = np.append(np.minimum(np.arange(count, dtype=np.intp) + 3 + sizes, count), count)
        far = following
        for _ in range(_STEP.bit_length() - 1):
            far = far[far]
        steps, starts, word = far.data, list[int](), 0
        while word < count:
            starts.append(word)
            word = steps[word]
        chain = np.empty((len(starts), _STEP), np.intp)
        chain[:, 0] = starts
        for column in range(1, _STEP):
            chain[:, column] = following[chain[:, column - 1]]
        found = chain.ravel()
        offsets = (found[found < count] * 4 + at).astype(np.uint32)
        return offsets if self.base else np.append(np.uint32(0), offsets)

    @cached_property
    def _by_prefix(self) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]:
        """The sorted first bytes of the types' names, and their places in _offsets; equal ones in the order of the types."""
        places = np.arange(0 if self.base else 1, len(self._offsets))
        names = _words_at(self._data, self._offsets[places], np.uint32)
        prefixes = np.zeros(len(names), np.uint64)
        own = names >= self._first_string
        prefixes[own] = _prefixes(self._strings, names[own] - self._first_string)
        if self.base:
            prefixes[~own] = _prefixes(self.base._strings, names[~own])
        order = np.argsort(prefixes, kind="stable")
        return prefixes[order], places[order]

    def digest(self) -> bytes:
        """A hash of the blob."""
        return hashlib.blake2b(self._data).digest()

    def string(self, offset: int) -> str:
        if self.base and offset < self._first_string:
            return self.base.string(offset)
        offset -= self._first_string
        return self._strings[offset : self._strings.index(0, offset)].decode()

    def type(self, number: int) -> Type:
        if number < self._first and self.base:
            return self.base.type(number)
        at = int(self._offsets[number - self._first])
        if number == 0:
            return Type(self, 0, 0, "void", 0, 0, False, 0)
        name, info, size = struct.unpack_from("<III", self._data, at)
        return Type(self, number, info >> 24 & 31, self.string(name), info & 0xFFFF, size, bool(info >> 31), at + 12)

    def find(self, name: str, *kinds: int) -> Type | None:
        """The first type of that name and kind, here or in vmlinux; None = none."""
        prefixes, places = self._by_prefix
        wanted = np.frombuffer(name.encode()[:_PREFIX_BYTES].ljust(_PREFIX_BYTES, b"\0"), np.uint64)
        low, high = np.searchsorted(prefixes, wanted, "left")[0], np.searchsorted(prefixes, wanted, "right")[0]
        for place in places[low:high]:
            found = self.type(self._first + int(place))
            if found.kind in kinds and found.name == name:
                return found
        return self.base.find(name, *kinds) if self.base else None

    def plain(self, number: int) -> Type:
        """The type without typedefs, const and the like."""
        t = self.type(number)
        while t.kind in _TRANSPARENT:
            t = self.type(t.size)
        return t

    def size_of(self, number: int) -> int:
        t = self.plain(number)
        if t.kind == PTR:
            return 8
        if t.kind == ARRAY:
            element, _, count = struct.unpack_from("<III", t.btf._data, t.at)
            return self.size_of(element) * int(count)
        return t.size

    def _members(self, t: Type) -> Iterator[tuple[str, int, int, int]]:
        for i in range(t.vlen):
            name, member, offset = struct.unpack_from("<III", t.btf._data, t.at + 12 * i)
            yield t.btf.string(name), member, offset & 0xFFFFFF if t.flag else offset, offset >> 24 if t.flag else 0

    def _descend(self, t: Type, path: list[str]) -> tuple[int, int, int] | None:
        """(bit offset, type number, width of a bit field) of a dotted path, also through anonymous structs and unions."""
        for name, member, bits, width in self._members(t):
            if name == path[0]:
                if len(path) == 1:
                    return bits, member, width
                found = self._descend(self.plain(member), path[1:])
            elif not name and self.plain(member).kind in (STRUCT, UNION):
                found = self._descend(self.plain(member), path)
            else:
                continue
            if found:
                return bits + found[0], found[1], found[2]
        return None

    def field(self, name: str, path: str) -> Field | None:
        """Layout of the field `path` ("nd_net.net") in `struct name`; None = no such field."""
        t = self.find(name, STRUCT)
        found = self._descend(t, path.split(".")) if t else None
        if not found:
            return None
        kind = self.plain(found[1])
        target = self.plain(kind.size) if kind.kind == PTR else None
        leads_to = target.name if target and target.kind == STRUCT else ""
        shift = found[0] % 8 if found[2] else 0
        return Field(found[0] // 8, self.size_of(found[1]), kind.kind, leads_to, shift, found[2], _element(kind))

    def structure_size(self, name: str) -> int | None:
        t = self.find(name, STRUCT)
        return t.size if t else None

    def parameters(self, function: str) -> list[tuple[str, str]] | None:
        """(name, type) of each parameter, a structure pointer as "NAME *", an enum as "enum NAME"; None = no such function."""
        t = self.find(function, FUNC)
        return self._parameters(self.type(t.size)) if t else None

    def tracepoint_parameters(self, name: str) -> list[tuple[str, str]] | None:
        """As `parameters`, for a raw tracepoint, from pahole's typedef btf_trace_NAME; without its first `void *`."""
        t = self.find("btf_trace_" + name, TYPEDEF)
        if t is None:
            return None
        return self._parameters(self.plain(self.plain(t.number).size))[1:]

    def _parameters(self, proto: Type) -> list[tuple[str, str]]:
        out = []
        for i in range(proto.vlen):
            name, number = struct.unpack_from("<II", proto.btf._data, proto.at + 8 * i)
            out.append((proto.btf.string(name), self._spell(number)))
        return out

    def _spell(self, number: int) -> str:
        t = self.plain(number)
        if t.kind == PTR:
            return self.plain(t.size).name + " *"
        return "enum " + t.name if t.kind in (ENUM, ENUM64) else t.name

    def enumerators(self, name: str) -> dict[str, int]:
        """Values of an enum by name; empty = no such enum."""
        t = self.find(name, ENUM, ENUM64)
        if t is None:
            return {}
        step, form = (8, "<Ii") if t.kind == ENUM else (12, "<IQ")
        pairs = (struct.unpack_from(form, t.btf._data, t.at + step * i) for i in range(t.vlen))
        return {t.btf.string(n): v for n, v in pairs}


def _words_at(data: bytes, offsets: npt.NDArray[np.uint32], kind: type[_Word]) -> npt.NDArray[_Word]:
    """The words of a kind that begin at these offsets, bytes."""
    size = np.dtype(kind).itemsize
    octets = np.frombuffer(data, np.uint8)
    windows = np.lib.stride_tricks.as_strided(octets, (max(0, len(octets) - size + 1), size), (1, 1), writeable=False)
    return windows[offsets].view(kind)[:, 0] if len(offsets) else np.zeros(0, kind)


def _prefixes(strings: bytes, offsets: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint64]:
    """The first bytes of the strings at these offsets, as numbers; shorter ones end with zeros."""
    words = _words_at(strings + bytes(_PREFIX_BYTES), offsets, np.uint64)
    # The lowest bit that is set here is the highest one of the first byte that is 0: bytes are in memory's order.
    ends = (words - _LOW_BITS) & ~words & _HIGH_BITS
    first_end = ends & (~ends + _ONE)
    # All bits below that byte; all bits where no byte is 0.
    return words & ((first_end >> _SEVEN) - _ONE)


def _element(array: Type) -> int:
    """Size of one element of an array of integers, bytes; 0 = not an array of integers."""
    if array.kind != ARRAY:
        return 0
    element = array.btf.plain(struct.unpack_from("<I", array.btf._data, array.at)[0])
    return element.size if element.kind == INT else 0


class KernelTypes:
    """BTF of the running kernel: vmlinux, and each loaded module, read on first use."""

    def __init__(self, directory: Path = SYS_BTF) -> None:
        self._directory = directory
        self._modules: dict[str, Btf] = {}
        self.vmlinux  # noqa: B018 - reads it: without it nothing can start

    @cached_property
    def vmlinux(self) -> Btf:
        """BTF of the kernel itself."""
        try:
            return Btf((self._directory / "vmlinux").read_bytes())
        except OSError as e:
            raise NoBtf(
                f"This kernel gives no BTF ({self._directory}/vmlinux: {e.strerror}); k8snet-trace needs a kernel built with "
                "CONFIG_DEBUG_INFO_BTF, 5.10 or later."
            ) from e

    def free(self) -> None:
        """Frees what was read, 10 MB. It is read again when something is asked."""
        self._modules.clear()
        for name in ("vmlinux", "builtin_layouts"):
            self.__dict__.pop(name, None)

    @property
    def modules_described(self) -> bool:
        """Whether this kernel provides BTF for modules: since 5.11, if configured."""
        return any(entry.name != "vmlinux" for entry in self._directory.iterdir())

    @cached_property
    def builtin_layouts(self) -> BuiltinLayouts | None:
        """Built-in layouts for modules without BTF.

        None if a module has BTF, or if the kernel is a later one, which has drop reasons (5.17).
        """
        if self.modules_described or self.vmlinux.enumerators("skb_drop_reason"):
            return None
        return BuiltinLayouts(self.vmlinux)

    def digests(self, modules: Iterable[str]) -> list[bytes]:
        """A hash of the BTF of vmlinux, and of each of these modules that has one, by name."""
        found = (self.module(name) for name in sorted(set(modules) - {"", "vmlinux"}))
        return [self.vmlinux.digest(), *(btf.digest() for btf in found if btf)]

    def layout_sources(self, module: str) -> Iterator[Btf | BuiltinLayouts]:
        """Sources of the layout of that module's structures, the most reliable first."""
        return (source for source in (self.module(module), self.builtin_layouts, self.vmlinux) if source)

    def module(self, name: str) -> Btf | None:
        """BTF of a module; None = not loaded, or the kernel provides none for modules (before 5.11)."""
        if name in ("", "vmlinux"):
            return self.vmlinux
        if name not in self._modules:
            try:
                self._modules[name] = Btf((self._directory / name).read_bytes(), self.vmlinux)
            except OSError:
                return None  # it may be loaded later
        return self._modules[name]
