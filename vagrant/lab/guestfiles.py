# SPDX-License-Identifier: Apache-2.0
"""The files for the guest at each boot: a small archive that the kernel unpacks over the initrd.

It also has the init scripts, so that a change in them needs no new image.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from . import cpio

GUEST = Path(__file__).resolve().parent / "guest"

PATH = "/mnt/share/vagrant/lab/guest/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

PASSED = ("FORCE_COLOR", "NO_COLOR", "COLUMNS", "LINES")
"""Variables that control a program's output: passed to the guest unchanged."""


def archive(command: Sequence[str], environment: Mapping[str, str], *, share: bool, shell: bool) -> bytes:
    """The archive for one boot."""
    options = f"MODE={'shell' if shell else 'run'}\nSHARE={int(share)}\n"
    return cpio.archive(
        [
            cpio.file("init", (GUEST / "init").read_bytes(), 0o755),
            cpio.directory("lab"),
            cpio.file("lab/init2", (GUEST / "init2").read_bytes(), 0o755),
            cpio.file("lab/options", options.encode()),
            cpio.file("lab/environment", exports(environment)),
            cpio.file("lab/command", script(command)),
        ]
    )


def script(command: Sequence[str]) -> bytes:
    """A shell script that executes the command; every argument arrives unchanged."""
    return b"exec " + os.fsencode(shlex.join(command)) + b"\n"


def exports(environment: Mapping[str, str]) -> bytes:
    """Shell text that exports these variables."""
    lines = (f"export {name}={shlex.quote(value)}\n" for name, value in environment.items())
    return os.fsencode("".join(lines))


def environment(
    kernel: str, suite: str, *, host: Mapping[str, str] = os.environ, terminal: os.terminal_size | None = None
) -> dict[str, str]:
    """The guest command's environment. `terminal`: the size of the host's terminal, None if there is none."""
    result = {
        "PATH": PATH,
        "HOME": "/root",
        "USER": "root",
        "LOGNAME": "root",
        "SHELL": "/bin/bash",
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "LAB_KERNEL": kernel,
        "LAB_SUITE": suite,
    }
    if terminal is not None:
        result["TERM"] = host.get("TERM", "dumb")
        if terminal.columns and terminal.lines:  # both are 0 when the terminal's size was never set
            result |= {"COLUMNS": str(terminal.columns), "LINES": str(terminal.lines)}
    return result | {name: host[name] for name in PASSED if name in host}


def own_terminal() -> os.terminal_size | None:
    """The size of the terminal at stdout, None if stdout is no terminal."""
    return os.get_terminal_size(sys.stdout.fileno()) if sys.stdout.isatty() else None
