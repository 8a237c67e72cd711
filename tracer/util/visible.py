# SPDX-License-Identifier: Apache-2.0
"""The one place that everything printed goes through: control characters in it become visible.

Names of processes, chains, interfaces and objects, lines of an API and texts of a capture are chosen by others. Printed as they
are, an escape sequence in one could write the clipboard, change the window's title or hide a line (C0, C1, DEL), a bidi control
could turn a rule's text around, and a newline could make a line of its own.

Colours are escape sequences, too. `style` gives them a mark that no data can have, for it is made anew in each process;
`finished` lets only those through.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable
from json import JSONEncoder
from typing import Any

_OWN = f"\x1b{secrets.token_hex(8)}"
_STYLE = re.compile(rf"{_OWN}(\x1b\[[0-9;]*m|\n)")
BREAK = f"{_OWN}\n"
"""A line break that is not data."""
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
_SURROGATE = re.compile("[\ud800-\udfff]")
_ENCODED_SURROGATE = re.compile(r"\\ud[89a-f]")
_encode = JSONEncoder(separators=(",", ":")).encode


def visible(text: str) -> str:
    r"""The text with an escape, such as \x1b or \u202e, in place of each character that has no shape of its own.

    A byte that is no UTF-8 (tracer/util/octets.py) is written as \xff.
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
    """Escape sequences of colours (SGR), each with the mark that lets them through."""
    return re.sub(r"\x1b\[[0-9;]*m", lambda found: _OWN + found[0], codes)


def width(text: str) -> int:
    """Columns that a text with styles takes."""
    return len(_STYLE.sub("", text))


def finished(line: str) -> str:
    """A line as it is written: with its styles, and with nothing else that a terminal would obey."""
    if line.isprintable():
        return line
    parts = _STYLE.split(line)
    return "".join(part if at % 2 else visible(part) for at, part in enumerate(parts))


def json_line(value: Any) -> str:
    """One line of JSON. All but ASCII's printable characters are escaped; a lone surrogate, which not every parser takes, is
    written as a visible escape in its string."""
    line = _encode(value)
    if _ENCODED_SURROGATE.search(line):
        line = _encode(mapped(value, lambda text: _SURROGATE.sub(lambda found: _escape(found[0]), text)))
    return line.replace("\x7f", "\\u007f")


def mapped(value: Any, change: Callable[[str], str]) -> Any:
    """Plain data with each of its texts changed, keys of dictionaries, too."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {mapped(k, change): mapped(v, change) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [mapped(v, change) for v in value]
    return value
