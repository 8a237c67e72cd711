# SPDX-License-Identifier: Apache-2.0
"""One JSON object in one line, as `stats -o json` writes its tables: {"type": "table", "title": "", "rows": [...]}."""

from __future__ import annotations

import math
from typing import TextIO

from tracer.analysis.formats import QueryResult, Value
from tracer.util.escape import json_line


def write_json(result: QueryResult, out: TextIO) -> None:
    rows = [dict(zip(result.columns, map(_finite, row), strict=True)) for row in result.rows]
    out.write(json_line({"type": "table", "title": "", "rows": rows}) + "\n")


def _finite(value: Value) -> Value:
    """JSON has no numbers for infinity and "not a number"."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


FORMAT = write_json
