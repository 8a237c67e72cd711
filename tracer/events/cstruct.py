# SPDX-License-Identifier: Apache-2.0
"""Reads the plain C structures and enums of `bpf/`: as numpy types, and to check the Python classes that repeat them.

So the C text is the only description of a record. Supported are fixed-width scalars, arrays of them, and structures of
these. Anything else raises an error, because a guess would decode garbage.

A type checker cannot read C. So a record or an enum that is used by name in Python has a class with the same fields or members.
The decorators `structure` and `enumeration` compare that class with the C text when its module is imported.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Mapping
from enum import IntEnum
from functools import cache
from typing import NamedTuple, TypeVar, get_type_hints

import numpy as np
import numpy.typing as npt

from tracer.events import bpf_source

_SCALARS = {"u8": "u1", "u16": "<u2", "u32": "<u4", "u64": "<u8"}
_FIELD = re.compile(r"(?:struct\s+)?(?P<type>\w+)\s+(?P<name>\w+)(?:\[(?P<count>\w+)\])?;[ \t]*(?:/\*(?P<doc>.*?)\*/)?", re.S)
_MEMBER = re.compile(r"(?P<name>\w+)\s*=\s*(?P<value>\d+)")
_COMMENT = re.compile(r"/\*.*?\*/", re.S)

Dtype = np.dtype[np.void]
"""The numpy type of a structure."""
Row = TypeVar("Row", bound=NamedTuple)
Members = TypeVar("Members", bound=IntEnum)


class LayoutError(Exception):
    """The C text does not have the plain form that this reader supports."""


def _body(text: str, kind: str, name: str) -> str:
    found = re.search(rf"^{kind} {name} \{{(.*?)^\}};", text, re.S | re.M)
    if not found:
        raise LayoutError(f"no {kind} {name}")
    return found[1]


def _defines(text: str) -> dict[str, int]:
    return {m[1]: int(m[2]) for m in re.finditer(r"^#define (\w+) (\d+)\s*(?:/\*.*)?$", text, re.M)}


def _dtype(text: str, name: str) -> Dtype:
    fields: list[tuple[str, npt.DTypeLike]] = []
    defines = _defines(text)
    for m in _FIELD.finditer(_body(text, "struct", name)):
        kind, count = m["type"], m["count"]
        size = 0 if count is None else int(count) if count.isdigit() else defines[count]
        if kind == "char":
            fields.append((m["name"], f"S{size}"))
        elif kind == "u8" and size == 16:
            fields.append((m["name"], "V16"))  # an address: numpy's S would cut its trailing zero bytes
        else:
            base = np.dtype(_SCALARS[kind]) if kind in _SCALARS else _dtype(text, kind)
            fields.append((m["name"], (base, (size,)) if size else base))
    packed, aligned = np.dtype(fields), np.dtype(fields, align=True)
    if packed.itemsize != aligned.itemsize:
        raise LayoutError(f"struct {name} would be padded: {packed.itemsize} bytes of fields in {aligned.itemsize}")
    return packed


@cache
def dtype(file: str, name: str) -> Dtype:
    """The numpy type of `struct name` in bpf/`file`; 16-byte u8 arrays (addresses) become V16, char arrays S."""
    return _dtype(bpf_source.read(file), name)


def packing(file: str, name: str) -> struct.Struct:
    """The same layout for `struct`, which decodes a single record faster than numpy.

    An array of u8 gives bytes; any other array gives its elements one after the other.
    """
    return struct.Struct("<" + "".join(_code(kind) for kind, *_ in (dtype(file, name).fields or {}).values()))


def _code(kind: Dtype) -> str:
    """The format of a field. Raises LayoutError: It is an array of structures."""
    base, shape = kind.subdtype or (kind, ())
    if base.kind in "SV" and base.fields is None and not shape:
        return f"{base.itemsize}s"
    if base.kind != "u":
        raise LayoutError(f"struct has no format for {kind}")
    letter = {1: "B", 2: "H", 4: "I", 8: "Q"}[base.itemsize]
    return f"{shape[0]}{'s' if letter == 'B' else letter}" if shape else letter


@cache
def define(file: str, name: str) -> int:
    """The value of `#define name` in bpf/`file`."""
    return _defines(bpf_source.read(file))[name]


@cache
def docs(file: str, name: str) -> dict[str, str]:
    """The comment of each field of `struct name` in bpf/`file`, by field name."""
    body = _body(bpf_source.read(file), "struct", name)
    return {m["name"]: " ".join((m["doc"] or "").split()) for m in _FIELD.finditer(body)}


@cache
def members(file: str, name: str) -> Mapping[str, int]:
    """The value of each member of `enum name` in bpf/`file`, by name, in order."""
    body = _COMMENT.sub("", _body(bpf_source.read(file), "enum", name))
    return {m["name"]: int(m["value"]) for m in _MEMBER.finditer(body)}


def structure(file: str, name: str) -> Callable[[type[Row]], type[Row]]:
    """Decorates a named tuple that has the fields of `struct name` in bpf/`file`, in order.

    A number is an `int`; an address or a name is `bytes`; any other array is what the reader of the record makes of it.

    Raises:
        LayoutError: A field is missing, is not in the C text, is at another place, or has another type.
    """

    def check(cls: type[Row]) -> type[Row]:
        fields = {field: _python_type(kind) for field, (kind, *_) in (dtype(file, name).fields or {}).items()}
        hints = get_type_hints(cls)
        _compare(cls, f"struct {name} in bpf/{file}", fields, {f: hints[f] if fields.get(f) else None for f in cls._fields})
        return cls

    return check


def enumeration(file: str, name: str) -> Callable[[type[Members]], type[Members]]:
    """Decorates an enum that has the members of `enum name` in bpf/`file`, in order.

    Raises:
        LayoutError: A member is missing, is not in the C text, is at another place, or has another value.
    """

    def check(cls: type[Members]) -> type[Members]:
        _compare(cls, f"enum {name} in bpf/{file}", members(file, name), {n: m.value for n, m in cls.__members__.items()})
        return cls

    return check


def _python_type(kind: Dtype) -> type[bytes | int] | None:
    """The Python type of a field of this numpy type; None for an array."""
    return None if kind.shape else bytes if kind.kind in "SV" else int


def _compare(cls: type, source: str, wanted: Mapping[str, object], found: Mapping[str, object]) -> None:
    """Compares the fields or members of a class with those of the C text, by name and in order."""
    names = [name for name in wanted if name in found], [name for name in found if name in wanted]
    faults = [f"{name} is missing" for name in wanted if name not in found]
    faults += [f"{name} is not in the C text" for name in found if name not in wanted]
    faults += [f"{name} is {_text(found[name])}, not {_text(wanted[name])}" for name in names[0] if found[name] != wanted[name]]
    faults += [f"{name} stands before {next_}" for next_, name in zip(*names, strict=True) if name != next_][:1]
    if faults:
        raise LayoutError(f"{cls.__module__}.{cls.__qualname__} is not {source}: {', '.join(faults)}")


def _text(value: object) -> str:
    return value.__name__ if isinstance(value, type) else str(value)
