# SPDX-License-Identifier: Apache-2.0
"""Classes that answer questions about the machine through a Journal, while packets are assembled.

Each class has the same methods as the class that it replaces. The Journal decides whether the machine or a capture answers.
Questions of findings and of causes are in tracer/node/node_questions.py and namespace_questions.py.
"""

from __future__ import annotations

from collections.abc import Callable

from tracer.model.namespace_name import HOST, distinct_name
from tracer.node.namespaces import NAMES_KEPT, Namespaces
from tracer.node.processes import NOT_RECORDED, Processes
from tracer.util.lru_dict import LruDict
from tracer.util.questions import Journal, value_of

NO_PROCESS = (0, "")
"""Pid and name of an unknown process."""


class JournaledProcesses(Processes):
    """Finds the process that holds a socket."""

    def __init__(self, journal: Journal) -> None:
        super().__init__()
        self._journal = journal

    def owner(self, inode: int) -> tuple[int, str]:
        # Most sockets are requested many times; the answer is looked up once.
        found = self._owners.get(inode)
        ask = super().owner
        return value_of(self._journal(("process", inode), lambda: found or ask(inode), NO_PROCESS)) or NOT_RECORDED


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
        self, journal: Journal, live: Namespaces | None, node: int = 0, own: int = 0, names: dict[int, str] | None = None
    ) -> None:
        self._journal, self._live = journal, live
        self.node, self.own = (live.node, live.own) if live else (node, own)
        self._names = live._names if live else LruDict(NAMES_KEPT, "names of namespaces")
        self._names.update(names or {})
        self._unknown = LruDict(NAMES_KEPT, "namespaces without a name")

    def name(self, inode: int) -> str:
        default = f"netns {inode}" if inode else ""
        live = self._live
        otherwise = default if live else self._names.get(inode, default)
        answer = value_of(self._journal(("netns", inode), lambda: live.name(inode) if live else "", otherwise))
        name = otherwise if answer is None else answer
        return name if live or inode == self.node else distinct_name(name, inode)

    def own_name(self) -> str:
        # No question of the journal: a capture has this name among those that were known at its start.
        if self._live:
            return self._live.own_name()
        return HOST if self.own and self.own == self.node else self._names.get(self.own, "")

    def named(self) -> list[int]:
        return self._live.named() if self._live else list(self._names)

    def _read_named(self) -> None:
        if self._live:
            self._live._read_named()

    def _read_processes(self) -> None:
        if self._live:
            self._live._read_processes()


def journaled_function(journal: Journal, function: Callable[[int], str]) -> Callable[[int], str]:
    """`function` through the journal: gives the kernel function at an address, "" = not known."""
    return lambda address: value_of(journal(("function", address), lambda: function(address), "")) or ""
