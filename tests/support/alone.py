# SPDX-License-Identifier: Apache-2.0
"""Runs commands of the program one after another in this process, and reports what they requested from the machine.

    python -m tests.support.alone '[["stats", "x.k8st"], ...]' ROOT...

ROOT: directories in which files may be opened, in addition to those of Python and of the program. The last line is JSON: the
exit status of each command, and for all commands together the files that Python opened elsewhere, each socket and each program.
Files that a library opens by itself, without Python, are not seen here: strace shows them
(tests/unit/capture/replay/test_alone.py).
"""

from __future__ import annotations

import io
import json
import os
import socket
import sys
import sysconfig
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

PROGRAM = Path(__file__).resolve().parents[2]
REQUESTS = ("socket.", "subprocess.", "os.exec", "os.fork", "os.posix_spawn", "os.spawn", "os.system", "pty.")
"""Prefixes of Python audit events: use of the network or of netlink, and the start of a program.

A Unix socket alone is none: asyncio makes a pair for itself. Its connection to a path would be one.
"""
LISTS = ("open", "os.listdir", "os.scandir", "sqlite3.connect")
OF_LIBRARIES = (
    "/dev/null", "/usr/lib", "/usr/share/zoneinfo", "/lib", "/etc/protocols", "/etc/services", "/etc/ethertypes",
    "/usr/share/wireshark/manuf",
)  # fmt: skip
"""Importing scapy reads the three files of /etc, and Wireshark's if it is installed, for names that are not used here."""


def roots() -> tuple[str, ...]:
    """The directories of Python, its libraries and this program: as given, and with symbolic links resolved."""
    found = {sys.prefix, sys.base_prefix, sys.exec_prefix, str(PROGRAM), *filter(None, sys.path)}
    found |= set(sysconfig.get_paths().values())
    return tuple(sorted({*found, *(os.path.realpath(path) for path in found)}))


class Watched:
    """Collects what Python opened and started since this object was made."""

    def __init__(self, allowed: tuple[str, ...]) -> None:
        self._allowed = allowed
        self.opened: set[str] = set()
        self.requests: set[str] = set()
        sys.addaudithook(self._hook)

    def _hook(self, event: str, arguments: tuple[object, ...]) -> None:
        if event == "socket.__new__" and arguments[1] == socket.AF_UNIX:
            return
        if event.startswith(REQUESTS):
            self.requests.add(f"{event} {arguments[1:]}")
        elif event in LISTS and isinstance(arguments[0], str | bytes | os.PathLike):
            path = os.path.abspath(os.fsdecode(arguments[0]).removeprefix("file:").partition("?")[0])
            if not any(path == root or path.startswith(root.rstrip("/") + "/") for root in self._allowed):
                self.opened.add(f"{event} {path}")


def main() -> None:
    commands, *allowed = sys.argv[1:]
    watched = Watched((*roots(), *OF_LIBRARIES, *allowed))
    from tracer.cli.main import main as program

    results = []
    for command in json.loads(commands):
        out, err = io.StringIO(), io.StringIO()
        try:
            with redirect_stdout(out), redirect_stderr(err):
                program(command)
        except SystemExit as e:
            results.append({"command": command, "status": e.code, "out": len(out.getvalue()), "err": err.getvalue()})
    print(json.dumps({"results": results, "opened": sorted(watched.opened), "requests": sorted(watched.requests)}))


if __name__ == "__main__":
    main()
