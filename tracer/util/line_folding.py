# SPDX-License-Identifier: Apache-2.0
"""Folding of lines at blanks: no address, name or option is divided at the edge of a terminal."""

from __future__ import annotations

import os
import re
from typing import TextIO

from tracer.util.escape import BREAK, width

USUAL_COLUMNS = 80
"""Width of a terminal that does not tell its own."""


def terminal_columns(stream: TextIO) -> int | None:
    """Width of a terminal, columns; None = the stream is not a terminal."""
    if not stream.isatty():
        return None
    try:
        return os.get_terminal_size(stream.fileno()).columns or USUAL_COLUMNS
    except (OSError, ValueError):
        return USUAL_COLUMNS


def folded(line: str, columns: int | None, indent: int) -> str:
    """Folds a line of escaped text at blanks.

    Args:
        line: The text; it may contain styles.
        columns: Width of a line; None = the line stays as it is, of any length.
        indent: Number of blanks before each part after the first.
    """
    if columns is None or len(line) <= columns:
        return line
    parts, part, used = [], "", 0
    for word in re.findall(r" *[^ ]+", line):
        size = width(word)
        if part.strip() and used + size > columns:
            parts.append(part.rstrip())
            word = " " * indent + word.lstrip()
            part, used = word, width(word)
        else:
            part, used = part + word, used + size
    return BREAK.join([*parts, part])
