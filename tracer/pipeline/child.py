# SPDX-License-Identifier: Apache-2.0
"""The command that is run beside the tracing, and the file that says that tracing has begun."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tracer.errors import BadOption, CommandNotFound

COMMAND_SECONDS = 5.0
"""Time that the command has to end by itself after SIGTERM."""


def start(command: Sequence[str]) -> subprocess.Popen[bytes]:
    """Starts the command to watch. Raises CommandNotFound."""
    try:
        return subprocess.Popen(command)
    except OSError as e:
        raise CommandNotFound(f"The command {command[0]!r} cannot be started: {e.strerror}.") from e


def end(command: subprocess.Popen[bytes] | None) -> None:
    """Ends a command that is still running, if there is one: asks it to, and after some seconds does not ask any more."""
    if command and command.poll() is None:
        command.terminate()
        try:
            command.wait(COMMAND_SECONDS)
        except subprocess.TimeoutExpired:
            command.kill()
            command.wait()


def write_ready(path: str, pid: int) -> None:
    """Tells whoever waits that the probes are on: the file appears whole, with this process's number in it.

    Raises BadOption when it cannot be written.
    """
    goal = Path(path)
    try:
        # A name that nobody can have put a link under; a link under the final name is replaced, not followed.
        fd, temporary = tempfile.mkstemp(dir=goal.parent, prefix=f".{goal.name}.")
        with open(fd, "w", encoding="ascii") as file:
            file.write(f"{pid}\n")
            os.fchmod(fd, 0o644)
        os.replace(temporary, goal)
    except OSError as e:
        raise BadOption(f"--ready-file {path} cannot be written: {e.strerror}.") from e
