# SPDX-License-Identifier: Apache-2.0
"""Trusted processes of the node. The name and the command line of a process are no proof: it can set both itself.

A process is trusted if it belongs to root, is in the network and user namespace of process 1, and has CAP_NET_ADMIN: such a
process can write the node's rules anyway. Its PID namespace does not matter: kubeadm's kube-proxy has its own.

All data is read through one descriptor of /proc/PID, so it belongs to one process. Trust is checked before the command line
is read, because that is in the process's memory, which may be mapped from a file system (FUSE) that does not answer.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tracer.util import untrusted_file

CAP_NET_ADMIN = 12
"""Number of the capability in linux/capability.h."""
NAMESPACES = ("ns/net", "ns/user")
ARGUMENTS = 65536
"""Longest command line that is read, bytes; kube-proxy's has some hundreds."""
NOBODY = -1


@contextmanager
def opened(proc: Path, pid: int) -> Iterator[int]:
    """Opens /proc/PID: yields its descriptor if the process is trusted; NOBODY = not trusted, or it has ended."""
    fd = NOBODY
    with suppress(OSError):
        fd = untrusted_file.directory(proc / str(pid))
    try:
        yield fd if fd != NOBODY and _is_trusted(fd, proc) else NOBODY
    finally:
        if fd != NOBODY:
            os.close(fd)


def arguments(process: int) -> list[str]:
    """The command line of a process; [] = it cannot be read, or is longer than ARGUMENTS bytes."""
    if process == NOBODY:
        return []
    try:
        return untrusted_file.read_at(process, "cmdline", ARGUMENTS).decode(errors="replace").rstrip("\0").split("\0")
    except OSError:
        return []


def _is_trusted(process: int, proc: Path) -> bool:
    try:
        lines = untrusted_file.read_at(process, "status").decode(errors="replace").splitlines()
        status = {name: value.split() for name, _, value in (line.partition(":") for line in lines)}
        if set(status["Uid"]) != {"0"} or not int(status["CapEff"][0], 16) >> CAP_NET_ADMIN & 1:
            return False
        return [os.stat(name, dir_fd=process).st_ino for name in NAMESPACES] == _host_namespaces(proc)
    except (OSError, LookupError, ValueError):
        return False


def _host_namespaces(proc: Path) -> list[int]:
    """Inodes of the namespaces of process 1, or of our own if those cannot be read.

    Raises:
        OSError: Neither can be read.
    """
    with suppress(OSError):
        return [(proc / "1" / name).stat().st_ino for name in NAMESPACES]
    return [(proc / "self" / name).stat().st_ino for name in NAMESPACES]
