# SPDX-License-Identifier: Apache-2.0
"""Names of network namespaces by inode, and indices of interfaces by name.

The node's own namespace is `node`. A namespace with a name under /run/netns (ip netns, CNI plugins) or /run/docker/netns has
that name, also if the tracer is in a container and only the node has that directory; one that is called `node` there has its
inode added. Any other namespace is named after a process in it.

The kernel uses the inode of a removed namespace again, often for the next one. So a name is checked again and again: it is
replaced when its file or process has gone and another one has that inode.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tracer.errors import BadOption
from tracer.model.namespace_name import HOST, Netns, distinct_name, is_host, unnamed
from tracer.node.host_files import elsewhere, of_node
from tracer.util.lru_dict import LruDict

NAMED = (Path("/run/netns"), Path("/var/run/docker/netns"))
NAMED_OF_NODE = ("/run/netns", "/run/docker/netns")
"""The same directories of the node, if this process has a file system of its own."""
CHECK_SECONDS = 0.1
"""Time after which a name is checked again, s: less than the idle timeout of a packet, so that a packet of a new namespace is
explained after the name of its inode was checked."""
PROCESSES_SECONDS = 1.0
"""Time after which all processes are read again for those in namespaces without a name, s: there may be thousands of them."""
_SOCKET = re.compile(r"socket:\[(\d+)\]")


def _inode(path: Path) -> int:
    """Inode of a namespace file; 0 = it does not exist or cannot be read."""
    try:
        return path.stat().st_ino
    except OSError:
        return 0


def _processes() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdigit())


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _directories() -> tuple[Path, ...]:
    return (*NAMED, *(of_node(name) for name in NAMED_OF_NODE)) if elsewhere() else NAMED


def named_files() -> Iterator[Path]:
    """Yields the files that name namespaces; directories that cannot be read are skipped."""
    for directory in _directories():
        found: list[Path] = []
        with suppress(OSError):
            found += directory.iterdir()
        yield from found


@dataclass
class _Holder:
    """The file that gave a namespace its name.

    Attributes:
        path: The file; of a process: /proc/PID/ns/net.
        checked_at: Time when it last had the inode of the namespace, s, CLOCK_MONOTONIC.
        is_gone: It no longer has that inode, and is not looked at again.
    """

    path: Path
    checked_at: float
    is_gone: bool = False


class NamespaceNames(Protocol):
    """Names of network namespaces by inode: of this machine, recorded, or from a capture.

    Attributes:
        node: Inode of the namespace of the node's PID 1; 0 = it cannot be read.
        own: Inode of the tracer's namespace.
    """

    node: int
    own: int

    def name(self, inode: int, requests: int = 1) -> Netns:
        """The name of a namespace; "netns N" = no name and no process. requests: how often it is used, see Journal."""
        ...

    def own_name(self) -> Netns:
        """The name of the tracer's namespace."""
        ...

    def named(self) -> list[int]:
        """Inodes of the node's namespace, of the tracer's, and of those with a name."""
        ...

    def find(self, name: str) -> int:
        """The inode of a namespace. Raises BadOption: There is no such namespace."""
        ...


class Namespaces:
    """Names of the network namespaces of this machine by inode, read again when an unknown inode is looked up.

    Attributes:
        node: Inode of PID 1's namespace; 0 = it cannot be read.
        own: Inode of this process's namespace.
    """

    def __init__(self) -> None:
        self.node = _inode(Path("/proc/1/ns/net"))
        self.own = _inode(Path("/proc/self/ns/net"))
        self._names: LruDict[int, Netns] = LruDict(NAMES_KEPT, "names of namespaces")
        if self.node:
            self._names[self.node] = HOST
        self._holders: LruDict[int, _Holder] = LruDict(NAMES_KEPT, "files that name namespaces")
        self._searched_at = self._files_at = self._processes_at = float("-inf")
        self._unknown: LruDict[int, None] = LruDict(NAMES_KEPT, "namespaces without a name")
        self._read_named()

    def _read_named(self) -> None:
        self._files_at = time.monotonic()
        for entry in named_files():
            inode = _inode(entry)
            if inode and self._is_free(inode):
                self._set(inode, distinct_name(entry.name, inode), entry)

    def _read_processes(self) -> None:
        self._processes_at = time.monotonic()
        for pid in _processes():
            holder = Path(f"/proc/{pid}/ns/net")
            inode = _inode(holder)
            if inode and self._is_free(inode):
                self._set(inode, Netns(f"{_command(pid)}[{pid}]"), holder)

    def _is_free(self, inode: int) -> bool:
        """Whether a namespace has no name, or that of an earlier namespace with its inode."""
        holder = self._holders.get(inode)
        return inode not in self._names or (holder is not None and holder.is_gone)

    def _set(self, inode: int, name: Netns, path: Path) -> None:
        self._names[inode], self._holders[inode] = name, _Holder(path, time.monotonic())

    def _check(self, inode: int) -> None:
        """Looks for the present holder of an inode if the file or process that named it has gone.

        A removed namespace keeps its name as long as no other one has its inode: its last packets may still be explained.
        """
        holder, now = self._holders.get(inode), time.monotonic()
        if not holder or now - holder.checked_at < CHECK_SECONDS:
            return
        if not holder.is_gone and _inode(holder.path) == inode:
            holder.checked_at = now
            return
        if now - self._searched_at < CHECK_SECONDS:
            return  # it stays due, so that the next search is not put off
        holder.checked_at = self._searched_at = now
        for i, each in self._holders.items():
            each.is_gone = each.is_gone or _inode(each.path) != i
        self._read_named()
        if self._is_free(inode):
            self._read_processes()

    def _search(self, inode: int) -> None:
        """Looks for the name of a namespace.

        One that had none is looked for again, because a later namespace may have its inode. One search is for all such
        namespaces, however many there are.
        """
        is_new, now = inode not in self._unknown, time.monotonic()
        if is_new or now - self._files_at >= CHECK_SECONDS:
            self._read_named()
            if inode not in self._names and (is_new or now - self._processes_at >= PROCESSES_SECONDS):
                self._read_processes()
        if inode in self._names:
            self._unknown.pop(inode, None)
        elif is_new:
            self._unknown[inode] = None

    def name(self, inode: int, requests: int = 1) -> Netns:
        """The name of a namespace; "netns N" = no name and no process."""
        if inode and inode == self.node:
            return HOST
        if inode in self._names:
            self._check(inode)
        else:
            self._search(inode)
        return self._names.get(inode) or unnamed(inode)

    def own_name(self) -> Netns:
        """The name of this process's namespace."""
        return self.name(self.own)

    def named(self) -> list[int]:
        """Inodes of the node's namespace, of this process's, and of those with a name."""
        self._read_named()
        return list(dict.fromkeys(i for i in (self.node, self.own, *self._names) if i))

    def find(self, name: str) -> int:
        """The inode of a namespace given as name, inode number, PID ("pid:N") or path.

        Raises:
            BadOption: There is no such namespace.
        """
        if name.startswith("pid:"):
            paths = [Path(f"/proc/{name[4:]}/ns/net")]
        elif "/" in name:
            paths = [Path(name)]
        else:
            paths = [d / name for d in _directories()]
        found = [inode for inode in map(_inode, paths) if inode]
        if is_host(Netns(name)) and self.node:
            found = [self.node]
        if not found:
            self._read_processes()
            found = [inode for inode, known in self._names.items() if name in (str(inode), known)]
        if found:
            return found[0]
        known = ", ".join(sorted(n for n in self._names.values())) or "none"
        raise BadOption(f"There is no network namespace {name!r} (known: {known}).")


def interface_index(name: str) -> int:
    """The ifindex of an interface in this process's namespace.

    Raises:
        BadOption: There is no such interface.
    """
    from pyroute2 import IPRoute

    with IPRoute() as route:
        found = [link for link in route.get_links() if dict(link["attrs"]).get("IFLA_IFNAME") == name]
        if not found:
            names = sorted(str(dict(link["attrs"]).get("IFLA_IFNAME")) for link in route.get_links())
            raise BadOption(f"There is no interface {name!r} here (there are: {', '.join(names)}).")
        return int(found[0]["index"])


def tracking() -> set[int]:
    """Inodes of the namespaces known to use conntrack: this process's, if it has entries. Reading a counter changes nothing."""
    try:
        entries = int(Path("/proc/sys/net/netfilter/nf_conntrack_count").read_text(encoding="ascii"))
    except OSError:
        return set()
    return {_inode(Path("/proc/self/ns/net"))} if entries else set()


NAMES_KEPT = 8192
"""Number of namespaces kept with a name, and of namespaces kept without one."""
