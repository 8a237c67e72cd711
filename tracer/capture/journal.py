# SPDX-License-Identifier: Apache-2.0
"""Classes that answer questions about the machine through a Journal, while packets are explained.

Each class has the same methods as the class that it replaces. The Journal decides whether the machine or a capture answers.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from pathlib import Path
from typing import TypeVar

from tracer.model.namespace_name import HOST, NO_NETNS, Netns, distinct_name, unnamed
from tracer.node.namespace_view import NamespaceInspector
from tracer.node.namespaces import NAMES_KEPT, Namespaces
from tracer.node.node import KEPT_SECONDS, HostReader, ListeningSocket
from tracer.node.processes import NOT_RECORDED, Processes
from tracer.util.lru_dict import LruDict
from tracer.util.questions import Journal, NotAsked, answered

T = TypeVar("T")
NO_PROCESS = (0, "")
"""Pid and name of an unknown process."""


class JournaledProcesses(Processes):
    """Finds the process that holds a socket."""

    def __init__(self, journal: Journal, kind: str = "process") -> None:
        super().__init__()
        self._journal, self._kind = journal, kind

    def owner(self, inode: int) -> tuple[int, str]:
        # Most sockets are requested many times; the answer is looked up once.
        found = self._owners.get(inode)
        ask = super().owner
        return answered(lambda: self._journal((self._kind, inode), lambda: found or ask(inode), NO_PROCESS), NOT_RECORDED)


class JournaledNamespaces(Namespaces):
    """Names of network namespaces.

    Args:
        journal: gives the answers.
        live: the namespaces of this machine; None in a replay.
        node: inode of the node's namespace; only in a replay.
        own: inode of this program's namespace; only in a replay.
        names: names that were known at the start, by inode.
    """

    def __init__(
        self, journal: Journal, live: Namespaces | None, node: int = 0, own: int = 0, names: dict[int, Netns] | None = None
    ) -> None:
        self._journal, self._live = journal, live
        self.node, self.own = (live.node, live.own) if live else (node, own)
        self._names = live._names if live else LruDict(NAMES_KEPT, "names of namespaces")
        self._names.update(names or {})
        self._unknown = LruDict(NAMES_KEPT, "namespaces without a name")

    def name(self, inode: int) -> Netns:
        live = self._live
        if live is None:
            recorded = self._names.get(inode) or unnamed(inode)
            name = answered(lambda: self._journal(("netns", inode), lambda: NO_NETNS, recorded), recorded)
            return name if inode == self.node else distinct_name(name, inode)
        return self._journal(("netns", inode), lambda: live.name(inode), unnamed(inode))

    def own_name(self) -> Netns:
        # No question of the journal: a capture has this name among those that were known at its start.
        if self._live:
            return self._live.own_name()
        return HOST if self.own and self.own == self.node else self._names.get(self.own, NO_NETNS)

    def named(self) -> list[int]:
        return self._live.named() if self._live else list(self._names)

    def _read_named(self) -> None:
        if self._live:
            self._live._read_named()

    def _read_processes(self) -> None:
        if self._live:
            self._live._read_processes()


class JournaledHostReader(HostReader):
    """Answers what findings need to know about the node, also about its processes. Every method may raise NotAsked."""

    def __init__(self, journal: Journal, proc: Path = Path("/proc"), run: Path | None = None) -> None:
        super().__init__(proc, run)
        self._journal = journal
        self._processes = JournaledProcesses(journal, "listener")

    def listener(self, address: str, port: int, protocol: str) -> ListeningSocket | None:
        """The listening socket. Raises NotAsked also where its process was not requested: it may be the intended listener."""
        found = super().listener(address, port, protocol)
        if found and (found.pid, found.command) == NOT_RECORDED:
            raise NotAsked(("listener", port))
        return found

    def _keep(self, key: Hashable, ask: Callable[[], T], default: T, seconds: float = KEPT_SECONDS) -> T:
        return self._journal(("node", key), lambda: super(JournaledHostReader, self)._keep(key, ask, default, seconds), default)


class JournaledNamespaceInspector(NamespaceInspector):
    """Answers what SYN verdicts need to know about namespaces. process() uses the given `processes`.

    A question that was not asked is answered like a value that cannot be read: empty, and a verdict does not mention it.
    """

    def __init__(self, journal: Journal, namespaces: Namespaces, processes: Processes) -> None:
        super().__init__(namespaces, processes)
        self._journal = journal

    def names(self) -> list[Netns]:
        ask = super().names
        return answered(lambda: self._journal(("space names",), ask, []), [])

    def _read_cached(self, name: Netns, what: str, look: Callable[[], T], otherwise: T) -> T:
        ask = super()._read_cached
        question = "space", name, what
        return answered(lambda: self._journal(question, lambda: ask(name, what, look, otherwise), otherwise), otherwise)

    def counters(self, name: Netns) -> dict[str, int]:
        ask = super().counters
        return answered(lambda: self._journal(("space", name, "counters"), lambda: ask(name), {}), {})


def journaled_function(journal: Journal, function: Callable[[int], str]) -> Callable[[int], str]:
    """`function` through the journal: gives the kernel function at an address, "" = not known."""
    return lambda address: answered(lambda: journal(("function", address), lambda: function(address), ""), "")
