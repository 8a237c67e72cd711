# SPDX-License-Identifier: Apache-2.0
"""Lines are folded at blanks, and only on a terminal."""

from __future__ import annotations

import io
import termios

from tests.support.pseudo_terminal import PseudoTerminal
from tracer.util.escape import escaped_line, style
from tracer.util.line_folding import USUAL_COLUMNS, folded, terminal_columns

ADDRESS = "10.60.7.6:8443"
LINE = f"the kernel drops SYNs to {ADDRESS} (Service shop/checkout:tls) without an answer"


def lines(columns: int | None, indent: int = 2, line: str = LINE) -> list[str]:
    return escaped_line(folded(line, columns, indent)).split("\n")


def test_words_stay_whole() -> None:
    for columns in range(30, 90):
        parts = lines(columns)
        assert all(len(part) <= columns for part in parts) and " ".join(part.strip() for part in parts) == LINE
        assert all(part.startswith("  ") for part in parts[1:]) and not parts[0].startswith(" ")


def test_a_word_that_is_too_long_is_not_divided() -> None:
    assert lines(10, line=f"to {ADDRESS} now") == ["to", f"  {ADDRESS}", "  now"]


def test_a_file_gets_one_line() -> None:
    assert lines(None) == [LINE] and terminal_columns(io.StringIO()) is None


def test_styles_take_no_room() -> None:
    assert lines(11, line=f"{style(chr(27) + '[31m')}seven and {style(chr(27) + '[0m')}four") == [
        "\x1b[31mseven and",
        "  \x1b[0mfour",
    ]


def test_width_of_a_terminal() -> None:
    terminal = PseudoTerminal()
    try:
        termios.tcsetwinsize(terminal.fd, (24, 132))
        assert terminal_columns(terminal.stream) == 132
        termios.tcsetwinsize(terminal.fd, (0, 0))
        assert terminal_columns(terminal.stream) == USUAL_COLUMNS
    finally:
        terminal.close()
