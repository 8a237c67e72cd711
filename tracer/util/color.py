# SPDX-License-Identifier: Apache-2.0
"""Whether this process writes colours, for all that it prints with rich: the option --color, above NO_COLOR and FORCE_COLOR."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal, TypedDict


class ColorMode(StrEnum):
    """The words of --color.

    auto: colours on a terminal, unless TERM is "dumb"; NO_COLOR removes them, FORCE_COLOR writes them into a pipe, too.
    """

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


class ConsoleOptions(TypedDict, total=False):
    """Arguments of `rich.console.Console`."""

    force_terminal: bool
    color_system: Literal["standard"] | None
    no_color: bool


_OPTIONS: dict[ColorMode, ConsoleOptions] = {
    ColorMode.AUTO: {},
    ColorMode.ALWAYS: {"force_terminal": True, "color_system": "standard", "no_color": False},
    ColorMode.NEVER: {"color_system": None},
}
_mode = ColorMode.AUTO


def use(mode: ColorMode) -> None:
    """Sets the mode of this process. Programs that it starts keep their own: no variable of the environment is changed."""
    global _mode
    _mode = mode


def console_options() -> ConsoleOptions:
    """The arguments of each `rich.console.Console` that results or notes are printed with."""
    return _OPTIONS[_mode].copy()
