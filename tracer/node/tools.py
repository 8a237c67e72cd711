# SPDX-License-Identifier: Apache-2.0
"""The system's own tools that print rules: iptables-save and its kin, nft. They only read.

They are found in fixed directories, never by the caller's PATH, and get no more rights than they need: CAP_NET_ADMIN to be
answered by the kernel, and iptables' CAP_NET_RAW for raw sockets: legacy rules are read through one, and the name of a set
(libxt_set), also of a rule of iptables-nft.
"""

from __future__ import annotations

import fcntl
import os
import resource
import shutil
import subprocess
from contextlib import suppress

from tracer.node import capabilities, netns
from tracer.util.octets import decoded

DIRECTORIES = "/usr/sbin:/usr/bin:/sbin:/bin"
"""Where tools are looked for; a test may set another one."""
RIGHTS, IPTABLES_RIGHTS = ("CAP_NET_ADMIN",), ("CAP_NET_ADMIN", "CAP_NET_RAW")
MOST_BYTES = 256 << 20
"""Bytes that one may print: a file in memory that cannot grow."""
MOST_MEMORY = 1 << 30
"""Bytes of address space that one may have: `nft -j` of a set of a million elements takes twice as much."""
SECONDS = 60
"""Time that one may take."""


def find(name: str) -> str | None:
    """Where a tool is; None when it is not installed."""
    return shutil.which(name, path=DIRECTORIES)


def output(name: str, *arguments: str) -> str:
    """What a tool prints. Raises OSError, which says why, also when it is not installed."""
    path = find(name)
    if not path:
        raise OSError(f"{name} is not installed")
    return printed(path, *arguments)


def printed(*command: str) -> str:
    """What it prints, by way of a file in memory: 80,000 rules through a pipe take longer than printing them.

    Raises OSError when it cannot be run, fails or takes too long.
    """
    with open(os.memfd_create(command[0], os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING), "r+b") as out:
        out.truncate(MOST_BYTES)
        fcntl.fcntl(out, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK)
        try:
            needed = IPTABLES_RIGHTS if _is_iptables(command[0]) else RIGHTS
            done = netns.apart(lambda: capabilities.restrict(needed), lambda: _run(command, out.fileno()))
        except subprocess.TimeoutExpired as e:
            raise OSError(f"{command[0]} took longer than {SECONDS} s") from e
        if done.returncode:
            why = " ".join(done.stderr.decode(errors="replace").split())
            raise OSError(f"{command[0]} failed with status {done.returncode}: {why}")
        length = os.lseek(out.fileno(), 0, os.SEEK_CUR)
        if length >= MOST_BYTES:
            raise OSError(f"{command[0]} printed more than {MOST_BYTES >> 20} MB")
        out.seek(0)
        return decoded(out.read(length))


def _is_iptables(program: str) -> bool:
    return os.path.basename(program).startswith(("iptables", "ip6tables"))


def _run(command: tuple[str, ...], out: int) -> subprocess.CompletedProcess[bytes]:
    """The thread that starts a program gives it its rights."""
    words, environment = [os.fsencode(word) for word in command], {"PATH": DIRECTORIES, "LC_ALL": "C"}
    with subprocess.Popen(words, stdout=out, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, env=environment) as tool:
        # From outside: a function that runs between fork and exec is not safe in a process with threads.
        with suppress(OSError):  # it has ended already
            resource.prlimit(tool.pid, resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
        try:
            _, error = tool.communicate(timeout=SECONDS)
        except BaseException:
            tool.kill()
            raise
    return subprocess.CompletedProcess(words, tool.returncode, stderr=error)
