# SPDX-License-Identifier: Apache-2.0
"""Data of a namespace for SYN verdicts: its listening sockets, settings and counters. Nothing is changed.

Data is kept for a second, or for less if a reported packet may have changed it. Data that cannot be read is empty: the
namespace may have been removed before its packet ended.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from tracer.errors import TraceError
from tracer.model.namespace_name import Netns
from tracer.node import netns, procnet
from tracer.node.namespaces import NamespaceNames, Namespaces
from tracer.node.node import KEPT_SECONDS, VOLATILE_SECONDS
from tracer.node.processes import Processes, SocketOwners
from tracer.node.procnet import BoundSocket
from tracer.util.lru_dict import LruDict

T = TypeVar("T")
ANSWERS_KEPT = 4096
NET = Path("/proc/thread-self/net")
"""The namespace of the reading thread; /proc/net is that of the main thread."""


class NamespaceReader:
    """Reads namespaces, given by the names that hops have."""

    def __init__(self, namespaces: NamespaceNames | None = None, processes: SocketOwners | None = None) -> None:
        self._namespaces = namespaces or Namespaces()
        self._processes = processes or Processes()
        self._kept: LruDict[Hashable, tuple[float, object]] = LruDict(ANSWERS_KEPT, "answers about namespaces")

    def bound(self, name: Netns) -> tuple[BoundSocket, ...]:
        """The listening TCP sockets of a namespace."""
        return self._read_cached(name, "bound", lambda: procnet.bound(NET, "tcp"), (), VOLATILE_SECONDS)

    def setting(self, name: Netns, setting: str, kept_seconds: float = KEPT_SECONDS) -> str:
        """A sysctl, given as a path ("net/ipv4/tcp_syncookies"); "" = no such sysctl.

        A value that was read less than `kept_seconds` ago is not read again.
        """
        return self._read_cached(name, setting, lambda: _read(Path("/proc/sys") / setting), "", kept_seconds)

    def counters(self, name: Netns) -> dict[str, int]:
        """TcpExt counters, and conntrack's statistics as conntrack_drop and so on. Not kept, because they are compared."""
        return self._read_inside(name, _counters, {})

    def owner(self, inode: int) -> tuple[int, str]:
        """(pid, command) of a process that holds a socket, as Processes.owner."""
        return self._processes.owner(inode)

    def names(self) -> list[Netns]:
        """Names of the namespaces that have a name now."""
        return [self._namespaces.name(inode) for inode in self._namespaces.named()]

    def _read_cached(self, name: Netns, what: str, look: Callable[[], T], otherwise: T, seconds: float) -> T:
        kept = self._kept.get((name, what))
        if kept and time.monotonic() - kept[0] < seconds:
            return kept[1]  # type: ignore[return-value]
        found = self._read_inside(name, look, otherwise)
        self._kept[name, what] = time.monotonic(), found
        return found

    def _read_inside(self, name: Netns, look: Callable[[], T], otherwise: T) -> T:
        with suppress(OSError, LookupError, ValueError, TraceError):
            return netns.inside_inode(self._namespaces.find(name), self._namespaces.own, look)
        return otherwise


def _read(path: Path) -> str:
    return " ".join(path.read_text(encoding="ascii").split())


def _counters() -> dict[str, int]:
    found = procnet.counters(NET)
    with suppress(OSError, ValueError):
        head, *rows = (NET / "stat/nf_conntrack").read_text(encoding="ascii").splitlines()
        for name, values in zip(head.split(), zip(*(row.split() for row in rows), strict=True), strict=True):
            found[f"conntrack_{name}"] = sum(int(value, 16) for value in values)
    return found
