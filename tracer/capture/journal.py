# SPDX-License-Identifier: Apache-2.0
"""What answers from the live machine while packets are explained, made to answer through a Journal.

One class each, with the same methods as the one it stands for; whether the machine answers or a capture, the Journal knows.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from pathlib import Path
from typing import TypeVar

from tracer.node.namespace_view import NamespaceInspector
from tracer.node.namespaces import NAMES_KEPT, Namespaces
from tracer.node.node import KEPT_SECONDS, HostReader, ListeningSocket
from tracer.node.processes import NOT_RECORDED, Processes
from tracer.util.asking import Journal, NotAsked, answered
from tracer.util.bounded import Bounded

T = TypeVar("T")
NOBODY = (0, "")


class JournaledProcesses(Processes):
    """Which process holds a socket."""

    def __init__(self, journal: Journal, of: str = "process") -> None:
        super().__init__()
        self._asking, self._of = journal, of

    def owner(self, inode: int) -> tuple[int, str]:
        # Most sockets are asked for again and again; the answer is looked up once.
        found = self._owners.get(inode)
        ask = super().owner
        return answered(lambda: self._asking((self._of, inode), lambda: found or ask(inode), NOBODY), NOT_RECORDED)


class JournaledNamespaces(Namespaces):
    """Names of network namespaces. of: those of this machine; None in a replay: then what was known at the start is given."""

    def __init__(
        self, journal: Journal, of: Namespaces | None, node: int = 0, own: int = 0, names: dict[int, str] | None = None
    ) -> None:
        self._asking, self._of = journal, of
        self.node, self.own = (of.node, of.own) if of else (node, own)
        self._names = of._names if of else Bounded(NAMES_KEPT)
        self._names.update(names or {})
        self._unknown = Bounded(NAMES_KEPT)

    def name(self, inode: int) -> str:
        default = f"netns {inode}" if inode else ""
        of = self._of
        if of is None:
            known = self._names.get(inode, default)
            return answered(lambda: self._asking(("netns", inode), str, known), known)
        return self._asking(("netns", inode), lambda: of.name(inode), default)

    def named(self) -> list[int]:
        return self._of.named() if self._of else list(self._names)

    def _read_named(self) -> None:
        if self._of:
            self._of._read_named()

    def _read_processes(self) -> None:
        if self._of:
            self._of._read_processes()


class JournaledHostReader(HostReader):
    """What findings ask of the node. Its processes are asked about through the same Asking. Every method may raise NotAsked."""

    def __init__(self, journal: Journal, proc: Path = Path("/proc"), run: Path | None = None) -> None:
        super().__init__(proc, run)
        self._asking = journal
        self._processes = JournaledProcesses(journal, "listener")

    def listener(self, address: str, port: int, protocol: str) -> ListeningSocket | None:
        """As live. Raises NotAsked also where the process was not asked for: it may be one that is meant to listen there."""
        found = super().listener(address, port, protocol)
        if found and (found.pid, found.command) == NOT_RECORDED:
            raise NotAsked(("listener", port))
        return found

    def _keep(self, key: Hashable, ask: Callable[[], T], default: T, seconds: float = KEPT_SECONDS) -> T:
        return self._asking(("node", key), lambda: super(JournaledHostReader, self)._keep(key, ask, default, seconds), default)


class JournaledNamespaceInspector(NamespaceInspector):
    """What verdicts on SYNs ask of namespaces. process() goes through the processes it is given.

    What was not asked is as what could not be read: empty, and a verdict says nothing of it.
    """

    def __init__(self, journal: Journal, namespaces: Namespaces, processes: Processes) -> None:
        super().__init__(namespaces, processes)
        self._asking = journal

    def names(self) -> list[str]:
        ask = super().names
        return answered(lambda: self._asking(("space names",), ask, []), [])

    def _ask(self, name: str, what: str, look: Callable[[], T], otherwise: T) -> T:
        ask = super()._ask
        question = "space", name, what
        return answered(lambda: self._asking(question, lambda: ask(name, what, look, otherwise), otherwise), otherwise)

    def counters(self, name: str) -> dict[str, int]:
        ask = super().counters
        return answered(lambda: self._asking(("space", name, "counters"), lambda: ask(name), {}), {})


def asked_function(journal: Journal, function: Callable[[int], str]) -> Callable[[int], str]:
    """The kernel function that an address lies in, "" = not known."""
    return lambda address: answered(lambda: journal(("function", address), lambda: function(address), ""), "")
