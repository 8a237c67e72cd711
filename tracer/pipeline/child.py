# SPDX-License-Identifier: Apache-2.0
"""The command that runs during tracing, and the file that signals that tracing has begun."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tracer.errors import BadOption, CommandNotFound

COMMAND_SECONDS = 5.0
"""Time between SIGTERM and SIGKILL for the command, seconds."""


def start(command: Sequence[str]) -> subprocess.Popen[bytes]:
    """Starts the command. Raises CommandNotFound."""
    try:
        return subprocess.Popen(command)
    except OSError as e:
        raise CommandNotFound(f"The command {command[0]!r} cannot be started: {e.strerror}.") from e


def end(command: subprocess.Popen[bytes] | None) -> None:
    """Ends the command if it is still running: SIGTERM first, SIGKILL after COMMAND_SECONDS."""
    if command and command.poll() is None:
        command.terminate()
        try:
            command.wait(COMMAND_SECONDS)
        except subprocess.TimeoutExpired:
            command.kill()
            command.wait()


def write_ready(path: str, pid: int) -> None:
    """Creates the file that signals that the probes are attached. It appears complete, and contains the process number `pid`.

    Raises BadOption when it cannot be written.
    """
    target = Path(path)
    try:
        # No other user can have placed a link at the temporary name; a link at the final name is replaced, not followed.
        fd, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        with open(fd, "w", encoding="ascii") as file:
            file.write(f"{pid}\n")
            os.fchmod(fd, 0o644)
        os.replace(temporary, target)
    except OSError as e:
        raise BadOption(f"--ready-file {path} cannot be written: {e.strerror}.") from e
