# SPDX-License-Identifier: Apache-2.0
"""Whether kube-proxy runs on this node, so that it can write its rules."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tracer.node import host_process, kube_proxy
from tracer.util import untrusted_file

FIRST_PID_NAMESPACE = 0xEFFFFFFC
"""Inode of the machine's first PID namespace, in which all processes are seen (PROC_PID_INIT_INO of linux/proc_ns.h)."""
INCLUDING = (*kube_proxy.PROGRAMS, *kube_proxy.WITH_KUBE_PROXY, "kubelite", "openshift-sdn", "sdn-node", "kube-router")
"""Beginnings of the names of processes that are kube-proxy, or may do its work."""
MOST_PROCESSES = 8
"""Maximum number of processes that are named."""
STOPPED = frozenset({"T", "t"})
"""States of a process that a signal or a debugger has stopped."""


@dataclass(frozen=True)
class ProxyState:
    """The processes of kube-proxy.

    Attributes:
        running: Pids of those that run.
        stopped: Pids of those that a signal has stopped.
        lock_pid: The process that holds the lock of legacy iptables (/run/xtables.lock), 0 = none.
    """

    running: tuple[int, ...] = ()
    stopped: tuple[int, ...] = ()
    lock_pid: int = 0


def read(proc: Path, run: Path) -> ProxyState | None:
    """The processes of kube-proxy on this node; None = not known: processes cannot be seen, or one may do kube-proxy's work."""
    try:
        if (proc / "self/ns/pid").stat().st_ino != FIRST_PID_NAMESPACE:
            return None
        pids = [int(each.name) for each in proc.iterdir() if each.name.isdigit()]
        states = {pid: state for pid in pids if (state := _state(proc, pid)) is not None}
    except OSError:
        return None
    if "" in states.values():
        return None
    running, stopped = ([pid for pid, state in states.items() if (state in STOPPED) == is_in] for is_in in (False, True))
    return ProxyState(tuple(running[:MOST_PROCESSES]), tuple(stopped[:MOST_PROCESSES]), _lock_holder(proc, run))


def _state(proc: Path, pid: int) -> str | None:
    """The state of a process of kube-proxy; "" = it may be one, but must not be trusted; None = it is none, or has ended.

    The name of a process is in the kernel's memory. Its command line is in its own, which may be mapped from a file system
    that does not answer, so only that of a trusted process is read.
    """
    with host_process.opened(proc, pid) as process:
        is_named = _name(proc, pid).startswith(INCLUDING)
        if process == host_process.NOBODY:
            return "" if is_named else None
        if not kube_proxy.is_kube_proxy(host_process.arguments(process)):
            return "" if is_named else None
        with suppress(OSError):
            # The name before it, in parentheses, may have any character.
            fields = untrusted_file.read_at(process, "stat").decode(errors="replace").rpartition(") ")[2].split()
            return None if not fields or fields[0] in ("Z", "X") else fields[0]
    return None


def _name(proc: Path, pid: int) -> str:
    with suppress(OSError):
        return (proc / str(pid) / "comm").read_bytes().decode(errors="replace").strip()
    return ""


def _lock_holder(proc: Path, run: Path) -> int:
    """Pid of the process that holds the lock of iptables; 0 = none, or not known."""
    with suppress(OSError, ValueError, IndexError):
        found = (run / "xtables.lock").stat()
        wanted = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
        for line in (proc / "locks").read_text(encoding="ascii").splitlines():
            fields = line.split()
            if fields[1] == "FLOCK" and fields[5] == wanted:
                return max(0, int(fields[4]))
    return 0
