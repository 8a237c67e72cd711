# SPDX-License-Identifier: Apache-2.0
"""The nouns of this program as JSON, and back: tuples, bytes, sets and the data classes of KINDS keep what they are.

Plain values are plain JSON. Anything else is an object of one key that says what it is: {"tuple": [...]}, {"Sandbox": {...}}.
Nothing but the classes listed here is ever made of what stands in a file.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Callable
from dataclasses import fields
from typing import Any

from tracer.capture.format.type_checks import LEAST as LEAST_NUMBER
from tracer.capture.format.type_checks import MOST as MOST_NUMBER
from tracer.capture.format.type_checks import sound
from tracer.kube.cni_cache import Sandbox
from tracer.model.check import CheckResult
from tracer.model.kube import HostPort
from tracer.model.loss import Loss
from tracer.node.kube_proxy import KubeProxy
from tracer.node.procnet import BoundSocket
from tracer.rules.iptables.table_reader import TableRequest
from tracer.rules.nftables.verdict_maps import MapElement, VerdictMap

KINDS: dict[str, Any] = {
    "Fact": CheckResult,
    "KubeProxy": KubeProxy,
    "Bound": BoundSocket,
    "Sandbox": Sandbox,
    "HostPort": HostPort,
    "Element": MapElement,
    "VerdictMap": VerdictMap,
    "Wanted": TableRequest,
    "Loss": Loss,
}
"""Data classes by their name in a capture, which is part of the format and stays when a class is renamed; so do their fields.
A class that is not written by its fields alone has a module of its own here."""
_NAMES = {kind: name for name, kind in KINDS.items()}

LONG = 400
"""Bytes from which a text is compressed. A compressed one begins with the byte 0x78, which no JSON does."""
MOST = 1 << 30
"""Bytes that a compressed text may become; more is damage, or somebody's joke."""
ALWAYS, TIMES = 24 << 20, 48
"""A value may take so many bytes of memory, and so many times its stored length more. What real runs store becomes 5 to 20
times as long."""
NODE_BYTES = 64
"""About what a value of JSON takes, beside its text."""
DEEPEST = 40
"""Values within values. A capture has not half as many."""


class MalformedRecord(Exception):
    """What stands there is not what a capture has there."""


def plain(value: Any) -> Any:
    """A value as what JSON has. Raises TypeError for what it does not know."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, bytes):
        return {"bytes": base64.b64encode(value).decode()}
    if isinstance(value, list):
        return [plain(v) for v in value]
    if isinstance(value, tuple):
        return {"tuple": [plain(v) for v in value]}
    if isinstance(value, set | frozenset):
        return {"set": sorted((plain(v) for v in value), key=json.dumps)}
    if isinstance(value, dict):
        return {"dict": [[plain(k), plain(v)] for k, v in value.items()]}
    if name := _NAMES.get(type(value)):
        return {name: {f.name: plain(getattr(value, f.name)) for f in fields(value)}}
    raise TypeError(f"a capture has no {type(value).__name__}")


def rich(value: Any, depth: int = DEEPEST) -> Any:
    """The value that `plain` was given, its data classes with fields of their types. Raises MalformedRecord."""
    if not depth:
        raise MalformedRecord("values within values without end")
    if isinstance(value, list):
        return [rich(v, depth - 1) for v in value]
    if not isinstance(value, dict):
        return value
    what, inside = next(iter(value.items())) if len(value) == 1 else ("", None)
    try:
        if what in KINDS and isinstance(inside, dict):
            known = {f.name for f in fields(KINDS[what])}
            # A field that this program no longer has is left out; one that it has since has its default.
            made = KINDS[what](**{k: rich(v, depth - 1) for k, v in inside.items() if k in known})
            if not sound(made):
                raise MalformedRecord(f"a {what} of other types")
            return made
        return _WHAT[what](inside, depth - 1)
    except (KeyError, TypeError, ValueError, AttributeError) as e:
        raise MalformedRecord(f"no value of a capture: {what!r}") from e


def _bytes(text: Any, depth: int) -> bytes:
    return base64.b64decode(text, validate=True)


_WHAT: dict[str, Callable[[Any, int], Any]] = {
    "bytes": _bytes,
    "tuple": lambda values, depth: tuple(rich(v, depth) for v in _listed(values)),
    "set": lambda values, depth: frozenset(rich(v, depth) for v in _listed(values)),
    "dict": lambda pairs, depth: {rich(k, depth): rich(v, depth) for k, v in _listed(pairs)},
}


def _listed(values: Any) -> list[Any]:
    if not isinstance(values, list):
        raise TypeError("no list")
    return values


def pack(value: Any) -> bytes:
    """Plain JSON as it is stored."""
    text = json.dumps(value, separators=(",", ":")).encode()
    return text if len(text) < LONG else zlib.compress(text, 1)


def unpack(stored: object) -> Any:
    """The plain JSON of what is stored: numbers have 64 bits and are finite. Raises MalformedRecord."""
    if isinstance(stored, str):
        stored = stored.encode(errors="surrogateescape")
    if not isinstance(stored, bytes):
        raise MalformedRecord("no text")
    most = min(MOST, ALWAYS + TIMES * len(stored))
    try:
        text = inflate(stored, most) if stored[:1] == b"\x78" else stored
        if len(text) + NODE_BYTES * sum(map(text.count, (b",", b"[", b"{"))) > most:
            raise MalformedRecord("more values than it has room for")
        return json.loads(text, parse_int=_int, parse_float=_float, parse_constant=_constant)
    except (ValueError, RecursionError) as e:
        raise MalformedRecord(str(e)) from e


def _int(text: str) -> int:
    number = int(text) if len(text) < 32 else MOST_NUMBER + 1
    if not LEAST_NUMBER <= number <= MOST_NUMBER:
        raise ValueError("a number of more than 64 bits")
    return number


def _float(text: str) -> float:
    return _constant(text) if abs(number := float(text)) == float("inf") else number


def _constant(text: str) -> float:
    raise ValueError(f"{text[:20]} is no number")


def inflate(stored: bytes, most: int = MOST) -> bytes:
    """What was compressed. Raises MalformedRecord when it is damaged, or becomes longer than `most`."""
    try:
        engine = zlib.decompressobj()
        whole = engine.decompress(stored, most)
    except zlib.error as e:
        raise MalformedRecord(str(e)) from e
    if not engine.eof:
        raise MalformedRecord("a compressed part has no end")
    return whole
