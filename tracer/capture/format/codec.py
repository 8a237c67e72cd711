# SPDX-License-Identifier: Apache-2.0
"""Encodes values as JSON and decodes them. Tuples, bytes, sets and the data classes of KINDS keep their type.

Plain values are plain JSON. Any other value is an object with one key, its type: {"tuple": [...]}, {"Sandbox": {...}}. Only the
classes in KINDS are created from the contents of a file.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Callable
from dataclasses import fields
from typing import Any

from tracer.capture.format.type_checks import MAX_NUMBER, MIN_NUMBER, has_valid_fields
from tracer.kube.cni_cache import Sandbox
from tracer.model.bpf_program import AttachedProgram, ProgramPeriod
from tracer.model.check import CheckResult
from tracer.model.kube import HostPort
from tracer.model.loss import Loss
from tracer.node.kube_proxy import KubeProxy
from tracer.node.procnet import BoundSocket, ConnectedSocket
from tracer.node.proxy_state import ProxyState
from tracer.rules.iptables.table_reader import TableRequest
from tracer.rules.nftables.verdict_maps import MapElement, VerdictMap

KINDS: dict[str, Any] = {
    "Fact": CheckResult,
    "KubeProxy": KubeProxy,
    "Bound": BoundSocket,
    "Connected": ConnectedSocket,
    "ProxyState": ProxyState,
    "Sandbox": Sandbox,
    "HostPort": HostPort,
    "Element": MapElement,
    "VerdictMap": VerdictMap,
    "Wanted": TableRequest,
    "Loss": Loss,
    "AttachedProgram": AttachedProgram,
    "ProgramPeriod": ProgramPeriod,
}
"""Data classes by their name in a capture. This name, and the names of the fields, are part of the format and do not change.
A class that needs more than its fields has its own module in this package."""
_NAMES = {kind: name for name, kind in KINDS.items()}

COMPRESS_BYTES = 400
"""Length from which a text is compressed, bytes. Compressed text begins with the byte 0x78; JSON never does."""
MAX_BYTES = 1 << 30
"""Maximum length of a decompressed text, bytes. More is damage or an attack."""
BASE_BYTES, MAX_RATIO = 24 << 20, 48
"""Maximum memory of a value: BASE_BYTES plus MAX_RATIO times its stored length. Values of real runs become 5 to 20 times as
long."""
_ZLIB_HEADERS, _ZLIB_BYTES = frozenset(zlib.compress(b"", level)[:2] for level in range(10)), 6
"""The first two bytes that zlib writes; length of these and of the check sum at the end, bytes."""
NODE_BYTES = 64
"""Approximate memory of a JSON value in addition to its text, bytes."""
MAX_DEPTH = 40
"""Maximum nesting of values. A real capture has less than half of it."""


class MalformedRecord(Exception):
    """A value in a capture is damaged or has another form than expected."""


def to_json(value: Any) -> Any:
    """A value as plain JSON. Raises TypeError for a type that a capture cannot hold."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, bytes):
        return {"bytes": base64.b64encode(value).decode()}
    if isinstance(value, list):
        return [to_json(v) for v in value]
    if isinstance(value, tuple):
        return {"tuple": [to_json(v) for v in value]}
    if isinstance(value, set | frozenset):
        return {"set": sorted((to_json(v) for v in value), key=json.dumps)}
    if isinstance(value, dict):
        return {"dict": [[to_json(k), to_json(v)] for k, v in value.items()]}
    if name := _NAMES.get(type(value)):
        return {name: {f.name: to_json(getattr(value, f.name)) for f in fields(value)}}
    raise TypeError(f"a capture has no {type(value).__name__}")


def from_json(value: Any, depth: int = MAX_DEPTH) -> Any:
    """Decodes the result of `to_json`. The fields of its data classes have their types. Raises MalformedRecord."""
    if not depth:
        raise MalformedRecord("values within values without end")
    if isinstance(value, list):
        return [from_json(v, depth - 1) for v in value]
    if not isinstance(value, dict):
        return value
    what, inside = next(iter(value.items())) if len(value) == 1 else ("", None)
    try:
        if what in KINDS and isinstance(inside, dict):
            names = {f.name for f in fields(KINDS[what])}
            # A field that this program no longer has is left out; a field that is newer than the capture gets its default.
            instance = KINDS[what](**{k: from_json(v, depth - 1) for k, v in inside.items() if k in names})
            if not has_valid_fields(instance):
                raise MalformedRecord(f"a {what} of other types")
            return instance
        return _DECODERS[what](inside, depth - 1)
    except (KeyError, TypeError, ValueError, AttributeError) as e:
        raise MalformedRecord(f"no value of a capture: {what!r}") from e


def _bytes(text: Any, depth: int) -> bytes:
    return base64.b64decode(text, validate=True)


_DECODERS: dict[str, Callable[[Any, int], Any]] = {
    "bytes": _bytes,
    "tuple": lambda values, depth: tuple(from_json(v, depth) for v in _as_list(values)),
    "set": lambda values, depth: frozenset(from_json(v, depth) for v in _as_list(values)),
    "dict": lambda pairs, depth: {from_json(k, depth): from_json(v, depth) for k, v in _as_list(pairs)},
}


def _as_list(values: Any) -> list[Any]:
    if not isinstance(values, list):
        raise TypeError("no list")
    return values


def pack(value: Any) -> bytes:
    """Plain JSON in its stored form."""
    text = json.dumps(value, separators=(",", ":")).encode()
    return text if len(text) < COMPRESS_BYTES else zlib.compress(text, 1)


def unpack(stored: object) -> Any:
    """The plain JSON of a stored value. Its numbers have 64 bits and are finite. Raises MalformedRecord."""
    if isinstance(stored, str):
        stored = stored.encode(errors="surrogateescape")
    if not isinstance(stored, bytes):
        raise MalformedRecord("no text")
    max_bytes = min(MAX_BYTES, BASE_BYTES + MAX_RATIO * len(stored))
    try:
        text = inflate(stored, max_bytes) if stored[:1] == b"\x78" else stored
        if len(text) + NODE_BYTES * sum(map(text.count, (b",", b"[", b"{"))) > max_bytes:
            raise MalformedRecord("more values than it has room for")
        return json.loads(text, parse_int=_int, parse_float=_float, parse_constant=_constant)
    except (ValueError, RecursionError) as e:
        raise MalformedRecord(str(e)) from e


def _int(text: str) -> int:
    number = int(text) if len(text) < 32 else MAX_NUMBER + 1
    if not MIN_NUMBER <= number <= MAX_NUMBER:
        raise ValueError("a number of more than 64 bits")
    return number


def _float(text: str) -> float:
    return _constant(text) if abs(number := float(text)) == float("inf") else number


def _constant(text: str) -> float:
    raise ValueError(f"{text[:20]} is no number")


def inflate(stored: bytes, max_bytes: int = MAX_BYTES) -> bytes:
    """Decompresses a text. Raises MalformedRecord when it is damaged, or longer than `max_bytes`.

    zlib's own check sum behind the text is not computed, which takes a fifth of the time: each row has one of its stored bytes,
    and that was compared (schema.is_sound).
    """
    if len(stored) < _ZLIB_BYTES or stored[:2] not in _ZLIB_HEADERS:
        raise MalformedRecord("a compressed part with another beginning")
    try:
        engine = zlib.decompressobj(-zlib.MAX_WBITS)
        whole = engine.decompress(memoryview(stored)[2:], max_bytes)
    except zlib.error as e:
        raise MalformedRecord(str(e)) from e
    if not engine.eof or len(engine.unused_data) < _ZLIB_BYTES - 2:
        raise MalformedRecord("a compressed part has no end")
    return whole
