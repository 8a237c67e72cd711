# SPDX-License-Identifier: Apache-2.0
"""The screen: what the keys change, that it fits, and that the terminal is restored, also after an error."""

from __future__ import annotations

import io
import os
import pty
import signal
import sys
import termios
import threading

import pytest
from rich.console import Console

from tests.support.terminal import Terminal
from tests.unit.analysis.top.test_printing import interval
from tracer.analysis.top.dimensions import DIMENSIONS
from tracer.analysis.top.keyboard import Keyboard, decoded
from tracer.analysis.top.orders import ORDERS
from tracer.analysis.top.screen import Screen


def screen(dimension: str = "service", width: int = 80, height: int = 24) -> Screen:
    made = Screen(dimension, "packets", 20, Terminal(), has_keys=False)
    made._console = Console(file=io.StringIO(), width=width, height=height, color_system=None)
    made.show(interval(dimension))
    return made


def lines(of: Screen) -> list[str]:
    """What the screen shows, without colours."""
    with of._console.capture() as captured:
        of._console.print(of.draw(), height=of._console.height)
    return captured.get().splitlines()


@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 40), (40, 10)])
def test_it_has_the_size_of_the_terminal(width: int, height: int) -> None:
    for dimension in DIMENSIONS:
        shown = lines(screen(dimension, width, height))
        assert len(shown) == height and max(map(len, shown)) <= width
        assert "Ctrl-C quit" in shown[-1], "the last line is never pushed out"


def test_losses_are_in_the_head_and_other_rows_below() -> None:
    shown = lines(screen("client", height=12))
    assert any(line.startswith("missing: 12 packets left out, 3 events lost") for line in shown)
    assert any(line.startswith("other") for line in shown)


def test_keys_choose_the_rows_and_the_order() -> None:
    made = screen()
    for number, name in enumerate(DIMENSIONS, 1):
        made.press(str(number))
        assert made.dimension == name
    assert "counting the first interval" in lines(made)[0], "the old rows are not shown under the new title"
    assert not "".join(lines(made)[2:-1]).strip(), "nothing stands below the title"
    orders = []
    for _ in ORDERS:
        orders.append(made._order)
        made.press("s")
    assert orders == list(ORDERS) and made._order == "packets"


def test_packets_of_a_row_and_back() -> None:
    made = screen("client", 120, 30)
    for key in ("down", "enter"):
        made.press(key)
    shown = "\n".join(lines(made))
    assert "192.168.56.1:40812 -> 192.168.56.10:30285" in shown and "node PREROUTING > node FORWARD" in shown
    made.press("back")
    assert "newest packets" not in "\n".join(lines(made))


def test_the_selected_row_is_shown_also_when_it_is_not_among_the_first() -> None:
    made = screen("client", height=12)
    for _ in range(50):
        made.press("down")
    keys = [key for key in made._interval.rows] if made._interval else []
    assert made._selected in keys and any(line.startswith(str(made._selected)) for line in lines(made))


def test_pause_keeps_the_table() -> None:
    made = screen()
    before = made._interval
    made.press("p")
    made.show(interval())
    assert made._interval is before and "paused" in lines(made)[0]


def test_q_ends_as_ctrl_c_does() -> None:
    caught: list[int] = []
    previous = signal.signal(signal.SIGINT, lambda number, frame: caught.append(number))
    try:
        screen().press("q")
    finally:
        signal.signal(signal.SIGINT, previous)
    assert caught == [signal.SIGINT]


def test_the_terminal_is_restored_after_an_error() -> None:
    out = Terminal()
    with pytest.raises(RuntimeError), Screen("service", "packets", 20, out, has_keys=False) as made:
        made._live.console = Console(file=out, force_terminal=True)
        made.begin()
        made.note("a note")
        raise RuntimeError
    shown, left, _ = out.getvalue().rpartition("\x1b[?1049l")
    assert left and "\x1b[?1049h" in shown


def test_decoded_keys() -> None:
    assert decoded("1s\x1b[A\x1bOB\r\x1b") == ["1", "s", "up", "down", "enter", "back"]
    assert decoded("\x1b3") == ["back", "3"], "Esc and a key that come together"
    assert decoded("\x1b[5~") == [] and decoded("jk\x7f") == ["down", "up", "back"]


@pytest.mark.parametrize("is_own", [True, False], ids=["own terminal", "terminal of no session"])
def test_keyboard_reads_keys_and_restores_the_terminal(is_own: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel tells the foreground process only to processes of the terminal's session."""
    terminal, stream = pty.openpty()
    before, pressed, came = termios.tcgetattr(stream), [], threading.Event()

    def on_key(key: str) -> None:
        pressed.append(key)
        came.set()

    with os.fdopen(stream) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        if is_own:
            monkeypatch.setattr(os, "tcgetpgrp", lambda fd: os.getpgrp())
        else:
            with pytest.raises(OSError, match="Inappropriate ioctl"):
                os.tcgetpgrp(stream)
        keyboard = Keyboard(on_key)
        keyboard.open()
        assert termios.tcgetattr(stream) != before, "keys come one by one"
        os.write(terminal, b"2")
        assert came.wait(20)
        keyboard.close()
        assert pressed == ["2"] and termios.tcgetattr(stream) == before
    os.close(terminal)
