# SPDX-License-Identifier: Apache-2.0
"""The windows over the screen: the list of keys, and the name and contents of a file to save."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList, Static

from tracer.render.parts.terminal_text import STYLES

KEYS = (
    ("/", "filter", "filter by address, port, Service, pod, rule, owner, outcome"),
    ("esc", "", "clears the filter and the message; closes a window"),
    ("tab", "pane", "next pane; shift-tab: the one before"),
    ("enter", "", "opens a connection, then a packet, then its path"),
    ("up down", "", "next row; also j, k, page up, page down, home"),
    ("end", "", "last row; then follows the newest one"),
    ("p", "pause", "stops the view; packets wait and are counted; p: goes on"),
    ("s", "save", "saves packets as JSON lines, in a new file"),
    ("v", "all hops", "every hook and table of a packet, or only decisions"),
    ("n", "", "notes of the run, in the lower pane; n: back"),
    ("?", "help", "this list"),
    ("q", "quit", "ends the run and the view; also Ctrl-C"),
)
"""The keys: the key, its word in the last line of the screen ("" = it is not there), what it does."""
LEGEND = (
    "Each word of the filter has to occur in a packet; findings are always shown. x: a packet was dropped, rejected or"
    " refused. Only some packets are kept, and the titles count the others; -w FILE records the whole run."
)


def key_line() -> Text:
    """The last line of the screen."""
    line = Text(no_wrap=True, overflow="ellipsis")
    for key, word, _ in KEYS:
        if word:
            line.append(f" {key}", "bold cyan").append(f" {word} ")
    return line


class HelpWindow(ModalScreen[None]):
    """The list of keys."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,question_mark,enter,space,f1", "dismiss", show=False)]

    def compose(self) -> ComposeResult:
        text = Text("Keys\n", STYLES["strong"])
        for key, _, meaning in KEYS:
            text.append(f"{key:<9}", "bold cyan").append(f"{meaning}\n", "not bold")
        text.append(f"\n{LEGEND}\n", "not bold").append("Esc closes this window.", STYLES["quiet"])
        with Vertical(classes="window"):
            yield Static(text)


@dataclass(frozen=True)
class SaveChoice:
    """What to save.

    Attributes:
        path: Name of the new file.
        what: Place of the chosen entry in the list.
    """

    path: str
    what: int


class SaveWindow(ModalScreen[SaveChoice | None]):
    """Asks what to save, and where. Esc gives None.

    Args:
        choices: What can be saved.
        name: A name for the file.
    """

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss(None)", show=False)]

    def __init__(self, choices: Sequence[str], name: str) -> None:
        super().__init__()
        self._choices, self._name_before = choices, name

    def compose(self) -> ComposeResult:
        with Vertical(classes="window"):
            yield Static(Text("Save packets as JSON lines", STYLES["strong"]))
            yield OptionList(*map(Text, self._choices), id="choices")
            yield Static(Text("New file; an existing one is never overwritten:"))
            yield Input(self._name_before, id="name")
            yield Static(Text("Tab: next field   Enter: save   Esc: back", STYLES["quiet"]))

    def on_mount(self) -> None:
        self.query_one(OptionList).highlighted = 0
        self.query_one(OptionList).focus()

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self._finish()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self._finish()

    def _finish(self) -> None:
        path = self.query_one(Input).value.strip()
        if path:
            self.dismiss(SaveChoice(path, self.query_one(OptionList).highlighted or 0))
