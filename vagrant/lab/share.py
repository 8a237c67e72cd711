# SPDX-License-Identifier: Apache-2.0
"""Shares a directory of the host with the guest, with one of the two implementations of virtiofsd."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from . import host

PROGRAMS = ("/usr/libexec/virtiofsd", "/usr/lib/virtiofsd", "/usr/lib/qemu/virtiofsd")


def program() -> str:
    """The path of virtiofsd; LabError if it is not installed."""
    for path in PROGRAMS:
        if os.access(path, os.X_OK):
            return path
    found = host.find("virtiofsd")
    if found is None:
        raise host.LabError(
            "missing virtiofsd: apt-get install --no-install-recommends virtiofsd"
            " (in Debian 12 it is part of qemu-system-common)"
        )
    return found


@contextmanager
def served(directory: Path, scratch: Path) -> Iterator[Path]:
    """Serves `directory` at a socket in `scratch` within the block; gives the socket's path."""
    path = scratch / "share"
    daemon = program()
    with (scratch / "virtiofsd.log").open("wb") as log, socket.socket(socket.AF_UNIX) as listener:
        # Listens before the daemon starts: no wait for the socket, and no lock file left in /run.
        listener.bind(str(path))
        listener.listen(1)
        process = host.spawn([daemon, *options(daemon, directory, listener.fileno())], output=log, pass_fds=[listener.fileno()])
    try:
        yield path
    finally:
        host.stop(process)


def options(daemon: str, directory: Path, descriptor: int) -> list[str]:
    """Arguments that serve `directory` on a listening socket, for the implementation of `daemon`."""
    text = subprocess.run([daemon, "--help"], capture_output=True, text=True, check=False)
    if "--shared-dir" in text.stdout + text.stderr:  # the implementation in Rust
        return [f"--fd={descriptor}", f"--shared-dir={directory}", "--sandbox=none", "--cache=auto"]
    source = str(directory).replace("\\", "\\\\").replace(",", "\\,")
    return [f"--fd={descriptor}", "-o", f"source={source},cache=auto,sandbox=chroot"]
