# SPDX-License-Identifier: Apache-2.0
"""Draws docs/images/trace.svg, a recorded packet and its finding as a terminal shows them.

Run it in a checkout with .venv/bin/python; it needs no root and no kernel.
"""

from __future__ import annotations

import io
import lzma
import os
import pty
import subprocess
import sys
import tempfile
import termios
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).resolve().parents[2]
CAPTURE = ROOT / "tests/data/real/J.k8st.xz"
PACKETS = "1"
COLUMNS = 132


def replayed(capture: str) -> str:
    """What `-r capture` prints to a terminal, which is where lines are folded."""
    terminal, stream = pty.openpty()
    termios.tcsetwinsize(stream, (50, COLUMNS))
    env = os.environ | {"TERM": "xterm-256color", "COLUMNS": str(COLUMNS)}
    command = (sys.executable, "-m", "tracer", "-r", capture, "-n", PACKETS)
    text = b""
    with subprocess.Popen(command, cwd=ROOT, env=env, stdout=stream, stderr=subprocess.DEVNULL):
        os.close(stream)
        try:
            while chunk := os.read(terminal, 65536):
                text += chunk
        except OSError:  # EIO: the command has ended
            os.close(terminal)
    return text.decode().replace("\r\n", "\n")


def main() -> None:
    with tempfile.NamedTemporaryFile(suffix=".k8st") as file:
        file.write(lzma.decompress(CAPTURE.read_bytes()))
        file.flush()
        text = replayed(file.name)
    console = Console(record=True, width=COLUMNS, file=io.StringIO())
    packet, finding, *_ = text.split("\n\n")
    console.print(Text.from_ansi(f"{packet}\n\n{finding}\n"))
    console.save_svg(str(ROOT / "docs/images/trace.svg"), title=f"k8snet-trace -r night.k8st -n {PACKETS}")


if __name__ == "__main__":
    main()
