# SPDX-License-Identifier: Apache-2.0
"""CSV as in RFC 4180, with a line of names. NULL is empty; control characters are escaped.

A text that a spreadsheet would run as a formula gets an apostrophe before it.
"""

from __future__ import annotations

import csv
from typing import TextIO

from tracer.analysis.formats import QueryResult, Value
from tracer.util.escape import escaped

FORMULA = ("=", "+", "-", "@")
"""First characters of a formula."""


def write_csv(result: QueryResult, out: TextIO) -> None:
    writer = csv.writer(out, lineterminator="\r\n")
    writer.writerow(map(_cell, result.columns))
    writer.writerows([_cell(value) for value in row] for row in result.rows)


def _cell(value: Value) -> Value:
    if not isinstance(value, str):
        return str(value).lower() if isinstance(value, bool) else value
    text = escaped(value)
    return f"'{text}" if text.lstrip().startswith(FORMULA) else text


FORMAT = write_csv
