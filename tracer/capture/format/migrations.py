# SPDX-License-Identifier: Apache-2.0
"""Converts the records of older format versions to the current one.

CONVERTERS has one converter for each older version. A converter gets a record (batch number, kind, key, body as plain JSON) or
the name and value of an item of `meta`, and returns the same in the form of the next version. The layout of events needs no
converter: a capture describes its own layout (tracer/capture/format/record_layout.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tracer.capture.format.schema import VERSION

RecordRow = tuple[int, str, str, Any]


def _same_record(row: RecordRow) -> RecordRow:
    return row


def _same_meta(name: str, value: Any) -> Any:
    return value


@dataclass(frozen=True)
class Converter:
    """Converts one version to the next."""

    record: Callable[[RecordRow], RecordRow] = _same_record
    meta: Callable[[str, Any], Any] = _same_meta


CONVERTERS: dict[int, Converter] = {1: Converter()}
"""Converters by the version that they convert from. Version 1 differs in the check sum of its rows only (schema.crc)."""


def record(version: int, row: RecordRow) -> RecordRow:
    """Converts a record of `version` to the current one. Errors of a converter (KeyError, TypeError ...) reach the caller."""
    for number in range(version, VERSION):
        row = CONVERTERS[number].record(row)
    return row


def meta(version: int, name: str, value: Any) -> Any:
    """Converts the value of an item of `meta` to the current version."""
    for number in range(version, VERSION):
        value = CONVERTERS[number].meta(name, value)
    return value
