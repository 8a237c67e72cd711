# SPDX-License-Identifier: Apache-2.0
"""Escaping of all printed text: control characters become visible.

Others choose the names of processes, chains, interfaces and objects, the lines of an API and the texts of a capture. Printed
unchanged, an escape sequence in them could write the clipboard, change the window's title or hide a line (C0, C1, DEL), a bidi
control could reverse a rule's text, and a newline could begin a line of its own.

Colours are escape sequences, too. `style` marks them with a random token, new in each process, which no data can contain;
`finished` passes only marked ones.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from json import JSONEncoder
from typing import Any

_OWN = f"\x1b{os.urandom(8).hex()}"
_STYLE = re.compile(rf"{_OWN}(\x1b\[[0-9;]*m|\n)")
BREAK = f"{_OWN}\n"
"""A line break of the layout, not of the data."""
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
_SURROGATE = re.compile("[\ud800-\udfff]")
_ENCODED_SURROGATE = re.compile(r"\\ud[89a-f]")
_encode = JSONEncoder(separators=(",", ":")).encode


def escaped(text: str) -> str:
    r"""Replaces each non-printable character by an escape, such as \x1b or \u202e.

    A byte that is not UTF-8 (tracer/util/octets.py) becomes \xff and the like.
    """
    return text if text.isprintable() else "".join(c if c.isprintable() else _escape(c) for c in text)


def _escape(character: str) -> str:
    number = ord(character)
    if 0xDC80 <= number <= 0xDCFF:
        number -= 0xDC00
    if number < 0x100:
        return _SHORT.get(character, f"\\x{number:02x}")
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def style(codes: str) -> str:
    """Marks the escape sequences of colours (SGR), so that `finished` passes them."""
    return re.sub(r"\x1b\[[0-9;]*m", lambda found: _OWN + found[0], codes)


def width(text: str) -> int:
    """Width of a text without its styles, columns."""
    return len(_STYLE.sub("", text))


def escaped_line(line: str) -> str:
    """The line for the terminal: styles are kept, all other control characters are escaped."""
    if line.isprintable():
        return line
    parts = _STYLE.split(line)
    return "".join(part if at % 2 else escaped(part) for at, part in enumerate(parts))


def json_line(value: Any) -> str:
    """Encodes one line of JSON. All characters but printable ASCII are escaped; a lone surrogate, which not every parser
    accepts, becomes a visible escape in its string."""
    line = _encode(value)
    if _ENCODED_SURROGATE.search(line):
        line = _encode(mapped(value, lambda text: _SURROGATE.sub(lambda found: _escape(found[0]), text)))
    return line.replace("\x7f", "\\u007f")


def mapped(value: Any, change: Callable[[str], str]) -> Any:
    """Applies `change` to each text of plain data, including keys of dictionaries."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {mapped(k, change): mapped(v, change) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [mapped(v, change) for v in value]
    return value
