# SPDX-License-Identifier: Apache-2.0
"""Draws the views of a recorded node at 80 and 120 columns: what each command prints, and the screen of `ui`.

    .venv/bin/python docs/images/screens.py             docs/images/ui.svg and ui-nodes.svg, which the documents show
    .venv/bin/python docs/images/screens.py DIRECTORY   all views, to look at them after a change

Run it in a checkout; it needs no root and no kernel.
"""

from __future__ import annotations

import asyncio
import io
import lzma
import os
import pty
import subprocess
import sys
import tempfile
import termios
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
CAPTURE = ROOT / "tests/data/real/B.k8st.xz"
if TYPE_CHECKING:
    from tracer.ui.feed import ScreenFeed

NAME = "night.k8st"
"""What the titles call the capture."""
COMMANDS = {
    "text": ("-r", NAME, "-n", "6"),
    "oneline": ("-r", NAME, "--oneline", "-n", "30"),
    "verbose": ("-r", NAME, "-n", "2", "-v"),
    "follow": ("-r", NAME, "--follow"),
    "quiet": ("-r", NAME, "-q"),
    "top": ("top", "-r", NAME, "--rows", "7"),
    "stats": ("stats", NAME),
    "findings": ("findings", NAME),
    "diff": ("diff", NAME, NAME),
    "top-drops": ("query", NAME, "top-drops"),
    "endpoints": ("query", NAME, "endpoints"),
    "rules-that-drop": ("query", NAME, "rules-that-drop"),
    "slow-syns": ("query", NAME, "slow-syns"),
    "doctor": ("doctor",),
    "audit": ("audit", "--no-kube"),
    "explain": ("explain", "--no-kube", "--from", "127.0.0.1", "--to", "127.0.0.1:80"),
    "help": ("--help",),
}
SIZES = {80: 24, 120: 40}
"""Lines of the screen of `ui` by columns."""
SETTLE_SECONDS = 0.5


def printed(words: tuple[str, ...], directory: str, columns: int) -> str:
    """What a command prints to a terminal with a number of columns."""
    terminal, stream = pty.openpty()
    termios.tcsetwinsize(stream, (50, columns))
    env = os.environ | {"TERM": "xterm-256color", "COLUMNS": str(columns), "PYTHONPATH": str(ROOT)}
    text = b""
    with subprocess.Popen(
        (sys.executable, "-m", "tracer", *words), cwd=directory, env=env, stdout=stream, stderr=subprocess.DEVNULL
    ):
        os.close(stream)
        try:
            while chunk := os.read(terminal, 65536):
                text += chunk
        except OSError:  # EIO: the command has ended
            os.close(terminal)
    return text.decode().replace("\r\n", "\n")


def draw_text(target: Path, words: tuple[str, ...], directory: str, columns: int) -> None:
    console = Console(record=True, width=columns, file=io.StringIO())
    console.print(Text.from_ansi(printed(words, directory, columns)))
    console.save_svg(str(target), title=f"k8snet-trace {' '.join(words)}")


def draw_screen(target: Path, columns: int, makes_feed: Callable[[], ScreenFeed], title: str) -> None:
    """Draws the screen of `ui`. makes_feed: makes what it shows."""
    from tracer.pipeline.shutdown import StopRequest
    from tracer.ui.app import TraceScreen

    feed = makes_feed()
    feed.notes.clear()
    screen = TraceScreen(feed, StopRequest(0))

    async def run() -> None:
        async with screen.run_test(size=(columns, SIZES[columns])) as pilot:
            await pilot.pause(SETTLE_SECONDS)
            target.write_text(screen.export_screenshot(title=title), encoding="utf-8")

    asyncio.run(run())


def one_node() -> ScreenFeed:
    """The results of a recorded node."""
    from tests.support.screens import recorded_feed

    return recorded_feed("B")


def two_nodes() -> ScreenFeed:
    """The results of two recorded nodes."""
    from tests.support import two_nodes

    with tempfile.TemporaryDirectory() as directory:
        return two_nodes.feed(two_nodes.make(Path(directory)))


SCREENS = {
    "ui": (one_node, f"k8snet-trace ui -r {NAME}"),
    "ui-nodes": (two_nodes, "kubectl k8snet-trace ui --service shop/cart"),
}
"""The screens of `ui` by the names of their files: what they show, and the title."""


def main() -> None:
    if len(sys.argv) < 2:
        for name, (makes_feed, title) in SCREENS.items():
            draw_screen(ROOT / f"docs/images/{name}.svg", 120, makes_feed, title)
        return
    out = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, NAME).write_bytes(lzma.decompress(CAPTURE.read_bytes()))
        for columns in SIZES:
            for name, words in COMMANDS.items():
                draw_text(out / f"{name}-{columns}.svg", words, directory, columns)
            for name, (makes_feed, title) in SCREENS.items():
                draw_screen(out / f"{name}-{columns}.svg", columns, makes_feed, title)


if __name__ == "__main__":
    main()
