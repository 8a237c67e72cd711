# SPDX-License-Identifier: Apache-2.0
"""Which processes may be believed to be the node's own: a process can give itself any name and any command line.

Believed is one that is root's, in the network and user namespace of process 1, and has CAP_NET_ADMIN: whoever has that may
write the node's rules anyway. Its namespace of processes is not asked for: kubeadm's kube-proxy has one of its own.

All is read through one descriptor of /proc/PID, so that it is told of one process. Who it is comes before its command line,
which lies in the process's memory, behind which can be a file of a file system (FUSE) that does not answer.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tracer.util import untrusted_file

CAP_NET_ADMIN = 12
"""Its number in linux/capability.h."""
SPACES = ("ns/net", "ns/user")
ARGUMENTS = 65536
"""Bytes of a command line; kube-proxy's has some hundreds."""
NOBODY = -1


@contextmanager
def opened(proc: Path, pid: int) -> Iterator[int]:
    """A descriptor of /proc/PID when that process is believed, NOBODY when it is not or is gone."""
    fd = NOBODY
    with suppress(OSError):
        fd = untrusted_file.directory(proc / str(pid))
    try:
        yield fd if fd != NOBODY and _believed(fd, proc) else NOBODY
    finally:
        if fd != NOBODY:
            os.close(fd)


def arguments(process: int) -> list[str]:
    """The command line of a process; [] when it cannot be read, or is longer than any that is looked for."""
    if process == NOBODY:
        return []
    try:
        return untrusted_file.read_at(process, "cmdline", ARGUMENTS).decode(errors="replace").rstrip("\0").split("\0")
    except OSError:
        return []


def _believed(process: int, proc: Path) -> bool:
    try:
        lines = untrusted_file.read_at(process, "status").decode(errors="replace").splitlines()
        status = {name: value.split() for name, _, value in (line.partition(":") for line in lines)}
        if set(status["Uid"]) != {"0"} or not int(status["CapEff"][0], 16) >> CAP_NET_ADMIN & 1:
            return False
        return [os.stat(name, dir_fd=process).st_ino for name in SPACES] == _home(proc)
    except (OSError, LookupError, ValueError):
        return False


def _home(proc: Path) -> list[int]:
    """The namespaces of process 1, or ours where those cannot be seen. Raises OSError."""
    with suppress(OSError):
        return [(proc / "1" / name).stat().st_ino for name in SPACES]
    return [(proc / "self" / name).stat().st_ino for name in SPACES]
