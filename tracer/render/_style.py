# SPDX-License-Identifier: Apache-2.0
"""Colours and line folding of the text format, without the cost of a rich renderable per packet.

rich decides once whether a stream gets colours (--color; terminal or not, NO_COLOR, FORCE_COLOR, TERM). After that a style is a
pair of strings around the text.
"""

from __future__ import annotations

from typing import TextIO

from rich.color import ColorSystem
from rich.console import Console
from rich.style import Style

from tracer.util.color import console_options
from tracer.util.escape import escaped
from tracer.util.escape import style as marked
from tracer.util.line_folding import folded

STYLES = {
    "quiet": "dim",
    "strong": "bold",
    "place": "bright_blue",
    "change": "cyan",
    "good": "green",
    "bad": "bold red",
    "doubt": "yellow",
}
"""Meaning of a text -> its style. No information is in the colour alone."""

KEEP = "\xa0"
"""A blank at which a line is not folded. It is written as an ordinary blank."""

plain = escaped
"""Makes control characters of untrusted text visible. Used before folding, so that the width is known."""


class Styler:
    """Styles and folds text for one stream."""

    def __init__(self, stream: TextIO) -> None:
        self._console = Console(file=stream, highlight=False, soft_wrap=True, **console_options())
        # FORCE_COLOR and --color always colour a pipe too, but only a real terminal has a width to fold at.
        self._folds = stream.isatty()
        self._around = {name: self._codes(look) for name, look in STYLES.items()}

    def _codes(self, look: str) -> tuple[str, str]:
        # Uses only the eight standard colours, as the user has configured them in the terminal.
        style, system = Style.parse(look), ColorSystem.STANDARD if self._console.color_system else None
        if self._console.no_color:
            style = style.without_color
        before, _, after = style.render("|", color_system=system).partition("|")
        return marked(before), marked(after)

    def __call__(self, style: str, text: str) -> str:
        before, after = self._around[style]
        return f"{before}{text}{after}"

    @property
    def width(self) -> int | None:
        """Width at which lines are folded, columns; None = they are not folded."""
        return self._console.width if self._folds else None

    def fold(self, line: str, indent: int) -> str:
        """Folds a line at blanks to the width of the terminal, with `indent` blanks before each further part.

        An address has no blanks, so it is never split. A stream that is not a terminal gets one line of any length.
        """
        return folded(line, self.width, indent).replace(KEEP, " ")
