# SPDX-License-Identifier: Apache-2.0
"""Panes of lines. Only the visible lines are drawn, however many there are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar, Generic, TypeVar

from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual.binding import Binding, BindingType
from textual.events import Click
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

R = TypeVar("R")
CHOSEN, CHOSEN_BEFORE = Style(bgcolor="#264f78", bold=True), Style(bgcolor="#333333")
"""Styles of the chosen row of the pane with the focus, and of another pane."""


class LinePane(ScrollView, can_focus=True):
    """A pane of lines that scrolls.

    Attributes:
        empty_text: What a pane without lines shows.
    """

    empty_text = ""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("j", "scroll_down", show=False),
        Binding("k", "scroll_up", show=False),
    ]

    def line_count(self) -> int:
        raise NotImplementedError

    def line(self, at: int) -> Text:
        """The line at a place."""
        raise NotImplementedError

    def is_marked(self, at: int) -> bool:
        """Whether the line is the chosen one."""
        return False

    def update_size(self) -> None:
        """The number of lines has changed."""
        self.virtual_size = Size(self.scrollable_content_region.width, self.line_count())
        self.refresh()

    def render_line(self, y: int) -> Strip:
        at, width = y + self.scroll_offset.y, self.scrollable_content_region.width
        base = self.rich_style
        if at >= self.line_count() and (at or not self.empty_text):
            return Strip.blank(width, base)
        text = self.line(at) if at < self.line_count() else Text(self.empty_text, "dim")
        if self.is_marked(at):
            base += CHOSEN if self.has_focus else CHOSEN_BEFORE
        text.no_wrap = True
        text.truncate(width, overflow="ellipsis", pad=True)
        segments = list(Segment.apply_style(text.render(self.app.console), base))
        return Strip(segments).adjust_cell_length(width, base)


class TextPane(LinePane):
    """A pane with a text that was folded to its width.

    Attributes:
        make: Makes the text for a width in characters; None = the pane is empty.
    """

    make: Callable[[int], Text] | None = None

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id)
        self._lines: list[Text] = []
        self._shown: tuple[object, int] = (None, 0)

    def show(self, subject: object, make: Callable[[int], Text] | None) -> None:
        """Shows a text. subject: What it is about; for another subject the pane is scrolled to its beginning."""
        if self._shown[0] != subject:
            self.scroll_to(y=0, animate=False)
        self._shown = (subject, self.scrollable_content_region.width)
        self.make = make
        self._lines = list(make(max(20, self._shown[1])).split("\n", allow_blank=True)) if make else []
        self.update_size()

    def on_resize(self) -> None:
        if self._shown[1] != self.scrollable_content_region.width:
            self.show(self._shown[0], self.make)

    def line_count(self) -> int:
        return len(self._lines)

    def line(self, at: int) -> Text:
        return self._lines[at].copy()


class RowPane(LinePane, Generic[R]):
    """A list of rows, one of which is chosen.

    Args:
        draw: Makes the text of a row for a width in characters.
        key: What identifies a row while the list changes.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", show=False),
        Binding("down,j", "move(1)", show=False),
        Binding("pageup", "page(-1)", show=False),
        Binding("pagedown", "page(1)", show=False),
        Binding("home,g", "first", show=False),
        Binding("end,G", "follow", show=False),
        Binding("enter", "open", show=False),
    ]

    class Chosen(Message):
        """Another row was chosen. pane: The list; is_opened: with Enter."""

        def __init__(self, pane: RowPane[object], is_opened: bool) -> None:
            self.pane, self.is_opened = pane, is_opened
            super().__init__()

    def __init__(self, draw: Callable[[R, int], Text], key: Callable[[R], object], *, id: str) -> None:
        super().__init__(id=id)
        self._draw, self._key = draw, key
        self._rows: Sequence[R] = ()
        self._at, self._follows = 0, False

    @property
    def chosen(self) -> R | None:
        """The chosen row; None = the list is empty."""
        return self._rows[self._at] if self._rows else None

    @property
    def rows(self) -> Sequence[R]:
        return self._rows

    def show(self, rows: Sequence[R]) -> bool:
        """Shows other rows. The chosen row stays, and stays where it is on the screen, if it is among them.

        Returns:
            Whether another row is chosen now.
        """
        before = self._key(self._rows[self._at]) if self._rows else None
        offset = self._at - self.scroll_offset.y
        self._rows = rows
        found = next((at for at, row in enumerate(rows) if self._key(row) == before), None) if before is not None else None
        if self._follows and rows and found != len(rows) - 1:
            self.update_size()
            self.place(len(rows) - 1)
            return True
        moved = found is not None and found != self._at
        self._at = found if found is not None else max(0, min(self._at, len(rows) - 1))
        self.update_size()
        if moved:
            self.scroll_to(y=max(0, self._at - offset), animate=False)
        return found is None

    def place(self, at: int) -> None:
        """Chooses the row at a place, without a message."""
        self._at = max(0, min(at, len(self._rows) - 1))
        self._scroll_to_chosen()
        self.refresh()

    def choose(self, at: int, is_opened: bool = False) -> None:
        """Chooses the row at a place."""
        if self._rows:
            self.place(at)
            self.post_message(self.Chosen(self, is_opened))  # type: ignore[arg-type]

    def _scroll_to_chosen(self) -> None:
        height, top = max(1, self.scrollable_content_region.height), self.scroll_offset.y
        if not top <= self._at < top + height:
            self.scroll_to(y=self._at if self._at < top else self._at - height + 1, animate=False)

    def action_move(self, by: int) -> None:
        self._follows = False
        self.choose(self._at + by)

    def action_page(self, by: int) -> None:
        self._follows = False
        self.choose(self._at + by * max(1, self.scrollable_content_region.height - 1))

    def action_first(self) -> None:
        self._follows = False
        self.choose(0)

    def action_follow(self) -> None:
        """Chooses the last row, and each one that comes after it."""
        self._follows = True
        self.choose(len(self._rows) - 1)

    def action_open(self) -> None:
        self.choose(self._at, is_opened=True)

    def on_click(self, event: Click) -> None:
        at = event.get_content_offset(self)
        if at is not None and at.y + self.scroll_offset.y < len(self._rows):
            self.choose(at.y + self.scroll_offset.y)

    def on_resize(self) -> None:
        self.update_size()
        self._scroll_to_chosen()

    def line_count(self) -> int:
        return len(self._rows)

    def line(self, at: int) -> Text:
        return self._draw(self._rows[at], self.scrollable_content_region.width)

    def is_marked(self, at: int) -> bool:
        return at == self._at and bool(self._rows)
