# SPDX-License-Identifier: Apache-2.0
"""Colours and line folding of the text format, without the cost of a rich renderable per packet.

rich decides once whether a stream gets colours (--color; terminal or not, NO_COLOR, FORCE_COLOR, TERM). After that a style is a
pair of strings around the text.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, TextIO

from tracer.util.color import console_options
from tracer.util.escape import escaped
from tracer.util.escape import style as marked
from tracer.util.line_folding import folded

if TYPE_CHECKING:
    from rich.console import Console

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

COLOUR_VARIABLES = ("FORCE_COLOR", "TTY_COMPATIBLE")
"""Variables of the environment for which rich may colour what is no terminal."""

KEEP = "\xa0"
"""A blank at which a line is not folded. It is written as an ordinary blank."""

plain = escaped
"""Makes control characters of untrusted text visible. Used before folding, so that the width is known."""


class Styler:
    """Styles and folds text for one stream."""

    def __init__(self, stream: TextIO) -> None:
        # FORCE_COLOR and --color always colour a pipe too, but only a real terminal has a width to fold at.
        self._folds = stream.isatty()
        self._console = _console(stream) if self._folds or _may_be_coloured() else None
        self._around = styled(self._console)

    def __call__(self, style: str, text: str) -> str:
        before, after = self._around[style]
        return f"{before}{text}{after}"

    @property
    def width(self) -> int | None:
        """Width at which lines are folded, columns; None = they are not folded."""
        return self._console.width if self._folds and self._console else None

    def fold(self, line: str, indent: int) -> str:
        """Folds a line at blanks to the width of the terminal, with `indent` blanks before each further part.

        An address has no blanks, so it is never split. A stream that is not a terminal gets one line of any length.
        """
        return folded(line, self.width, indent).replace(KEEP, " ")


def _may_be_coloured() -> bool:
    """Whether a stream that is no terminal may get colours; else rich is not imported, a twentieth of a start's CPU time."""
    return bool(console_options().get("force_terminal")) or any(name in os.environ for name in COLOUR_VARIABLES)


def _console(stream: TextIO) -> Console:
    from rich.console import Console

    return Console(file=stream, highlight=False, soft_wrap=True, **console_options())


def styled(console: Console | None) -> dict[str, tuple[str, str]]:
    """What a console writes before and after a text of each of STYLES. None: a stream without colours."""
    if console is None:
        return dict.fromkeys(STYLES, ("", ""))
    from rich.color import ColorSystem
    from rich.style import Style

    # Uses only the eight standard colours, as the user has configured them in the terminal.
    system = ColorSystem.STANDARD if console.color_system else None
    found = {}
    for name, look in STYLES.items():
        style = Style.parse(look)
        before, _, after = (style.without_color if console.no_color else style).render("|", color_system=system).partition("|")
        found[name] = marked(before), marked(after)
    return found
