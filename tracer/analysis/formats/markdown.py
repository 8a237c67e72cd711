# SPDX-License-Identifier: Apache-2.0
"""A table in Markdown (GitHub's). Control characters and everything that would be markup, a link or a column are escaped."""

from __future__ import annotations

import re
from typing import TextIO

from tracer.analysis.formats import QueryResult, Value
from tracer.util.escape import escaped

_MARKUP = re.compile(r"[\\`*_\[\]<>|&~#!]|(?<=\w):(?=//)|(?<=www)\.|@")
"""Characters with a meaning, those of addresses that would become links among them."""


def write_markdown(result: QueryResult, out: TextIO) -> None:
    is_number = [_is_number(row[at] for row in result.rows) for at in range(len(result.columns))]
    _write_row([_cell(name) for name in result.columns], out)
    _write_row(["---:" if right else "---" for right in is_number], out)
    for row in result.rows:
        _write_row([_cell(value) for value in row], out)


def _is_number(values: object) -> bool:
    found = [v for v in values if v is not None]  # type: ignore[attr-defined]
    return bool(found) and all(isinstance(v, int | float) and not isinstance(v, bool) for v in found)


def _write_row(cells: list[str], out: TextIO) -> None:
    out.write("|" + "|".join(f" {cell} " for cell in cells) + "|\n")


def _cell(value: Value) -> str:
    if value is None:
        return ""
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return _MARKUP.sub(lambda found: "\\" + found[0], escaped(text))


FORMAT = write_markdown
