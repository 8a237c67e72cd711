# SPDX-License-Identifier: Apache-2.0
"""Older captures: for each version before this program's, how its records become those of the next one.

A converter is listed in CONVERTERS under the version it takes. It gets a record (turn, kind, key, body as plain JSON) or the
name and value of a piece of `meta`, and returns the same of the next version. The layout of events needs none: a capture tells
its own (tracer/capture/format/record_layout.py).
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
    """From one version to the next."""

    record: Callable[[RecordRow], RecordRow] = _same_record
    meta: Callable[[str, Any], Any] = _same_meta


CONVERTERS: dict[int, Converter] = {}
"""By the version that it takes, one for each from the first on. 1 is the first and the newest, so there is none yet."""


def record(version: int, row: RecordRow) -> RecordRow:
    """A record of that version as this program has it. Errors of a converter (KeyError, TypeError ...) reach the caller."""
    for number in range(version, VERSION):
        row = CONVERTERS[number].record(row)
    return row


def meta(version: int, name: str, value: Any) -> Any:
    """The same of a piece of `meta`."""
    for number in range(version, VERSION):
        value = CONVERTERS[number].meta(name, value)
    return value
