# SPDX-License-Identifier: Apache-2.0
"""Reads the plain C structures and enums of `bpf/` as numpy types and Python enums.

So the C text is the only description of a record. Supported are fixed-width scalars, arrays of them, and structures of
these. Anything else raises an error, because a guess would decode garbage.
"""

from __future__ import annotations

import re
from enum import IntEnum
from functools import cache
from typing import Any

import numpy as np

from tracer.events import bpf_source

_SCALARS = {"u8": "u1", "u16": "<u2", "u32": "<u4", "u64": "<u8"}
_FIELD = re.compile(r"(?:struct\s+)?(?P<type>\w+)\s+(?P<name>\w+)(?:\[(?P<count>\w+)\])?;[ \t]*(?:/\*(?P<doc>.*?)\*/)?", re.S)
_MEMBER = re.compile(r"(?P<name>\w+)\s*=\s*(?P<value>\d+)")
_COMMENT = re.compile(r"/\*.*?\*/", re.S)


class LayoutError(Exception):
    """The C text does not have the plain form that this reader supports."""


def _body(text: str, kind: str, name: str) -> str:
    found = re.search(rf"^{kind} {name} \{{(.*?)^\}};", text, re.S | re.M)
    if not found:
        raise LayoutError(f"no {kind} {name}")
    return found[1]


def _defines(text: str) -> dict[str, int]:
    return {m[1]: int(m[2]) for m in re.finditer(r"^#define (\w+) (\d+)\s*(?:/\*.*)?$", text, re.M)}


def _dtype(text: str, name: str) -> np.dtype[Any]:
    fields: list[tuple[Any, ...]] = []
    defines = _defines(text)
    for m in _FIELD.finditer(_body(text, "struct", name)):
        kind, count = m["type"], m["count"]
        size = 0 if count is None else int(count) if count.isdigit() else defines[count]
        if kind == "char":
            fields.append((m["name"], f"S{size}"))
        elif kind == "u8" and size == 16:
            fields.append((m["name"], "V16"))  # an address: numpy's S would cut its trailing zero bytes
        else:
            base: Any = _SCALARS[kind] if kind in _SCALARS else _dtype(text, kind)
            fields.append((m["name"], base, (size,)) if size else (m["name"], base))
    packed, aligned = np.dtype(fields), np.dtype(fields, align=True)
    if packed.itemsize != aligned.itemsize:
        raise LayoutError(f"struct {name} would be padded: {packed.itemsize} bytes of fields in {aligned.itemsize}")
    return packed


@cache
def dtype(file: str, name: str) -> np.dtype[Any]:
    """The numpy type of `struct name` in bpf/`file`; 16-byte u8 arrays (addresses) become V16, char arrays S."""
    return _dtype(bpf_source.read(file), name)


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
def enum(file: str, name: str) -> Any:
    """`enum name` of bpf/`file` as an IntEnum; members keep their C names."""
    body = _COMMENT.sub("", _body(bpf_source.read(file), "enum", name))
    return IntEnum(name, {m["name"]: int(m["value"]) for m in _MEMBER.finditer(body)})
