# SPDX-License-Identifier: Apache-2.0
"""The system's tools that print rules: iptables-save and similar tools, nft. They only read.

They are searched in fixed directories, never in the caller's PATH, and run with the rights that they need: CAP_NET_ADMIN for
requests to the kernel; iptables' tools also CAP_NET_RAW for raw sockets, which read legacy rules and the names of sets
(libxt_set), the latter also for rules of iptables-nft.
"""

from __future__ import annotations

import fcntl
import os
import resource
import shutil
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress

from tracer.node import capabilities, netns
from tracer.util.octets import decoded

DIRECTORIES = "/usr/sbin:/usr/bin:/sbin:/bin"
"""Search path of tools; tests may replace it."""
RIGHTS, IPTABLES_RIGHTS = ("CAP_NET_ADMIN",), ("CAP_NET_ADMIN", "CAP_NET_RAW")
MOST_BYTES = 256 << 20
"""Largest output of a tool, bytes; it is written to a file in memory that cannot grow."""
MOST_MEMORY = 1 << 30
"""Largest address space of a tool, bytes. `nft -j` of a set of a million elements needs twice as much."""
SECONDS = 60
"""Time limit of a tool, s."""
_NFT_ERROR = b"Error:"
"""In the messages of nft. An nft that is older than an expression leaves it out, with a message, and ends with status 0."""
WATCH_SECONDS = 0.25
"""Interval at which the output of a running tool is looked at, s."""


def find(name: str) -> str | None:
    """Path of a tool; None = not installed."""
    return shutil.which(name, path=DIRECTORIES)


def output(name: str, *arguments: str, seconds: float = 0) -> str:
    """Output of a tool. `seconds`: its time limit, 0 = SECONDS.

    Raises:
        OSError: The tool is not installed or fails; the error has the reason.
    """
    path = find(name)
    if not path:
        raise OSError(f"{name} is not installed")
    return printed(path, *arguments, seconds=seconds)


def printed(*command: str, watch: Callable[[bytes], None] | None = None, seconds: float = 0) -> str:
    """Output of a command, through a file in memory: 80,000 rules through a pipe take longer than printing them.

    Args:
        command: The command and its arguments.
        watch: Called several times a second with what was printed since the last call; not with what is printed last.
        seconds: Time limit, s; 0 = SECONDS.

    Raises:
        OSError: The command cannot be run, fails or takes too long.
    """
    seconds = seconds or SECONDS
    with open(os.memfd_create(command[0], os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING), "r+b") as out:
        out.truncate(MOST_BYTES)
        fcntl.fcntl(out, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK)
        try:
            needed = IPTABLES_RIGHTS if _is_iptables(command[0]) else RIGHTS
            done = netns.apart(lambda: capabilities.restrict(needed), lambda: _run(command, out.fileno(), watch, seconds))
        except subprocess.TimeoutExpired as e:
            raise TimeoutError(f"{command[0]} took longer than {seconds:g} s") from e
        if done.returncode or (os.path.basename(command[0]) == "nft" and _NFT_ERROR in done.stderr):
            why = " ".join(done.stderr.decode(errors="replace").split())
            raise OSError(f"{command[0]} failed with status {done.returncode}: {why}")
        length = os.lseek(out.fileno(), 0, os.SEEK_CUR)
        if length >= MOST_BYTES:
            raise OSError(f"{command[0]} printed more than {MOST_BYTES >> 20} MB")
        out.seek(0)
        return decoded(out.read(length))


def _is_iptables(program: str) -> bool:
    return os.path.basename(program).startswith(("iptables", "ip6tables"))


def _run(
    command: tuple[str, ...], out: int, watch: Callable[[bytes], None] | None, seconds: float
) -> subprocess.CompletedProcess[bytes]:
    """Runs a command with the rights of this thread."""
    arguments, environment = [os.fsencode(word) for word in command], {"PATH": DIRECTORIES, "LC_ALL": "C"}
    with subprocess.Popen(arguments, stdout=out, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, env=environment) as tool:
        # Set by the parent: code between fork and exec is not safe in a process with threads.
        with suppress(OSError):  # it has ended already
            resource.prlimit(tool.pid, resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
        try:
            error = _watched(tool, out, watch, seconds) if watch else tool.communicate(timeout=seconds)[1]
        except BaseException:
            tool.kill()
            raise
    return subprocess.CompletedProcess(arguments, tool.returncode, stderr=error)


def _watched(tool: subprocess.Popen[bytes], out: int, watch: Callable[[bytes], None], seconds: float) -> bytes:
    """As Popen.communicate(seconds); returns what the tool wrote to stderr. The tool shares the position in the file."""
    until, seen = time.monotonic() + seconds, 0
    while True:
        try:
            error: bytes = tool.communicate(timeout=WATCH_SECONDS)[1]
            return error
        except subprocess.TimeoutExpired:
            if time.monotonic() >= until:
                raise
        length = os.lseek(out, 0, os.SEEK_CUR)
        watch(os.pread(out, length - seen, seen))
        seen = length
