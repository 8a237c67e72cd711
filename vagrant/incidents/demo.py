# SPDX-License-Identifier: Apache-2.0
"""Shows one incident: what the client sees, and what the tracer reports. As root inside a virtual machine."""

from __future__ import annotations

import fcntl
import os
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[0:1] = [str(ROOT), str(ROOT / "vagrant")]

from rich.console import Console  # noqa: E402
from rich.markup import escape  # noqa: E402

import incidents  # noqa: E402

SETTLE, WIDTH = 1.5, 120


def main() -> int:
    """Returns the tracer's exit status."""
    number = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    incident = incidents.find(number)
    state = sys.argv[2] if len(sys.argv) > 2 else next(iter(incident.states))
    console = Console(highlight=False, width=None if sys.stdout.isatty() else WIDTH)
    console.print(f"[bold]Incident {number}: {incident.title}[/]  ({state}) on Linux {os.uname().release}")
    console.print(f"{incident.symptom}\n")
    console.print("[dim]building the node and compiling the probes; this is slow on an emulated machine ...[/]")
    try:
        incident.up(state)
        with tempfile.TemporaryDirectory() as directory:
            return watch(console, incident, Path(directory))
    finally:
        incidents.down()


def watch(console: Console, incident: incidents.Incident, directory: Path) -> int:
    """Starts the tracer, makes the requests, ends the tracer; returns its exit status."""
    ready = directory / "ready"
    options = [word for port in incident.ports for word in ("--port", str(port))] + list(incident.options)
    options += ["--objects", str(incidents.OBJECTS)]
    console.print(f"\n[bold]node-1 #[/] k8snet-trace {' '.join(options)}")
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    colour = console.is_terminal or os.environ.get("FORCE_COLOR")
    environment |= {"FORCE_COLOR": "1"} if colour else {"TERM": "dumb"}
    command = [sys.executable, "-m", "tracer", *options, "--ready-file", str(ready)]
    with Screen(console.width) as screen:
        tracer = subprocess.Popen(command, stdout=screen.written, env=environment | screen.size)
        while not ready.exists():
            if tracer.poll() is not None:
                return tracer.returncode
            time.sleep(0.1)
        requests = incident.traffic()
        time.sleep(SETTLE)
        tracer.terminate()
        status = tracer.wait()
    width = max(len(request) for request, _ in requests)
    console.print("\n[bold]The requests, and their results[/]")
    for request, answer in requests:
        console.print(f"  {escape(request.ljust(width))}   [bold]{escape(answer)}[/]")
    console.print("\n[bold]What k8snet-trace reports[/]\n")
    sys.stdout.flush()
    os.write(1, screen.text)
    return status


class Screen:
    """A terminal for the tracer's output, so that the tracer folds its lines; the output is shown when the tracer has ended."""

    def __init__(self, width: int) -> None:
        self.size, self.text = {"COLUMNS": str(width), "LINES": "50"}, b""
        self._read, self.written = os.openpty()
        fcntl.ioctl(self.written, termios.TIOCSWINSZ, struct.pack("4H", 50, width, 0, 0))
        self._reader = threading.Thread(target=self._take, daemon=True)

    def __enter__(self) -> Screen:
        self._reader.start()
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.written)
        self._reader.join(5)
        os.close(self._read)

    def _take(self) -> None:
        # read() fails when the other side is closed by all processes.
        with suppress(OSError):
            while piece := os.read(self._read, 65536):
                self.text += piece.replace(b"\r\n", b"\n")


if __name__ == "__main__":
    sys.exit(main())
