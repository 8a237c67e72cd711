# SPDX-License-Identifier: Apache-2.0
"""Processes and their sockets."""

from __future__ import annotations

import os
import time
from typing import Protocol

from tracer.node.namespaces import _SOCKET, _command, _processes
from tracer.util.lru_dict import LruDict

MISSED_KEPT = 4096
"""Number of sockets that are kept as looked up in vain; one that was dropped is looked up again at once."""
PIDS_KEPT = 4096
"""Number of processes with sockets that are kept; they are read first when a new socket is looked up."""
OWNERS_KEPT = 1 << 17
"""Number of sockets that are kept with their process; the least recently used one is dropped."""
NOT_RECORDED = (0, "not recorded")
"""Owner of a socket if the capture does not have its process. (0, "") = looked up and not found."""


class SocketOwners(Protocol):
    """Processes that hold sockets: of this machine, recorded, or from a capture."""

    def owner(self, inode: int) -> tuple[int, str]:
        """(pid, command) of a process that holds the socket; (0, "") = not found, NOT_RECORDED = not in the capture."""
        ...


class Processes:
    """Finds the process of this machine that holds a socket."""

    def __init__(self, pause: float = 1.0) -> None:
        """pause: Shortest time between two readings of all processes, s; on a busy node one takes a tenth of a second."""
        self._owners: LruDict[int, tuple[int, str]] = LruDict(OWNERS_KEPT, "owners of sockets")
        self._missed: LruDict[int, float] = LruDict(MISSED_KEPT, "sockets without an owner")
        self._pids: LruDict[int, None] = LruDict(PIDS_KEPT, "processes with sockets")
        self._pause, self._read_at = pause, float("-inf")

    def owner(self, inode: int) -> tuple[int, str]:
        """(pid, command) of a process that holds the socket; (0, "") = not found.

        A new socket most likely belongs to a known process, so those are read first. A socket that was not found is looked up
        again only after the pause.
        """
        now = time.monotonic()
        if inode and inode not in self._owners and now - self._missed.get(inode, float("-inf")) > self._pause:
            for pid in list(self._pids):
                self._read(pid, inode)
            if inode not in self._owners and now - self._read_at > self._pause:
                self._read_at = now
                for pid in _processes():
                    self._read(pid, inode)
                    if inode in self._owners and len(self._owners) >= OWNERS_KEPT:
                        break
            if inode not in self._owners:
                self._missed[inode] = now
        return self._owners.get(inode, (0, ""))

    def _read(self, pid: int, socket_inode: int) -> None:
        """Stores the sockets of a process. socket_inode: inode of the requested socket."""
        owner: tuple[int, str] | None = None
        try:
            names = os.listdir(f"/proc/{pid}/fd")
        except OSError:
            self._pids.pop(pid, None)
            return
        command = ""
        for name in names:
            try:
                found = _SOCKET.match(os.readlink(f"/proc/{pid}/fd/{name}"))
            except OSError:
                continue
            inode = int(found[1]) if found else 0
            if inode and (inode not in self._owners or inode == socket_inode):
                command = command or _command(pid)
                self._pids[pid] = None
                if inode == socket_inode:
                    owner = (pid, command)
                else:
                    self._owners[inode] = (pid, command)
        # Last, so that a process with more sockets than are kept does not evict it.
        if owner and socket_inode not in self._owners:
            self._owners[socket_inode] = owner
