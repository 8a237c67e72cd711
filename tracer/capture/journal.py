# SPDX-License-Identifier: Apache-2.0
"""Classes that answer questions about the machine through a Journal, while packets are assembled.

Each class has the methods of NamespaceNames or SocketOwners. The Journal decides whether the machine or a capture answers.
Questions of findings and of causes are in tracer/node/node_questions.py and namespace_questions.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tracer.errors import BadOption
from tracer.model.bpf_program import AttachPoint, ProgramPeriod
from tracer.model.namespace_name import HOST, NO_NETNS, Netns, distinct_name, unnamed
from tracer.node.namespaces import NAMES_KEPT, NamespaceNames
from tracer.node.processes import NOT_RECORDED, SocketOwners
from tracer.packets.program_drops import AttachedPrograms
from tracer.util.lru_dict import LruDict
from tracer.util.questions import Journal, value_of

NO_PROCESS = (0, "")
"""Pid and name of an unknown process."""


class JournaledProcesses:
    """Finds the process that holds a socket.

    Args:
        journal: Gives the answers.
        live: The processes of this machine; None in a replay.
    """

    def __init__(self, journal: Journal, live: SocketOwners | None = None) -> None:
        self._journal, self._live = journal, live

    def owner(self, inode: int) -> tuple[int, str]:
        return value_of(self._journal(("process", inode), lambda: self._ask(inode), NO_PROCESS)) or NOT_RECORDED

    def _ask(self, inode: int) -> tuple[int, str]:
        return self._live.owner(inode) if self._live else NO_PROCESS


class RecordedNamespaces:
    """Names of the network namespaces of this machine, which are recorded when they are requested.

    Args:
        journal: Records the answers.
        live: The namespaces of this machine.
    """

    def __init__(self, journal: Journal, live: NamespaceNames) -> None:
        self._journal, self._live = journal, live
        self.node, self.own = live.node, live.own

    def name(self, inode: int, requests: int = 1) -> Netns:
        name = value_of(self._journal(("netns", inode), lambda: self._live.name(inode), unnamed(inode), requests))
        return unnamed(inode) if name is None else name

    def own_name(self) -> Netns:
        # No question of the journal: a capture has this name among those that were known at its start.
        return self._live.own_name()

    def named(self) -> list[int]:
        return self._live.named()

    def find(self, name: str) -> int:
        return self._live.find(name)


class ReplayedNamespaces:
    """Names of the network namespaces of a capture.

    Args:
        journal: Gives the recorded answers.
        node: Inode of the node's namespace.
        own: Inode of the recording program's namespace.
        names: Names that were known at the start, by inode. A name that was not requested later is one of these.
        version: Gives a number that changes before an answer changes; until then each question is asked once.
    """

    def __init__(self, journal: Journal, node: int, own: int, names: Mapping[int, Netns], version: Callable[[], int]) -> None:
        self._journal, self._version, self.node, self.own = journal, version, node, own
        self._names: LruDict[int, Netns] = LruDict(NAMES_KEPT, "names of namespaces")
        self._names.update(names)
        self._asked: LruDict[int, Netns] = LruDict(NAMES_KEPT, "names of namespaces")
        self._asked_at = version()

    def name(self, inode: int, requests: int = 1) -> Netns:
        if (version := self._version()) != self._asked_at:
            self._asked.clear()
            self._asked_at = version
        found = self._asked.get(inode)
        if found is None:
            found = self._asked[inode] = self._ask(inode, requests)
        return found

    def _ask(self, inode: int, requests: int) -> Netns:
        at_start = self._names.get(inode) or unnamed(inode)
        answer = value_of(self._journal(("netns", inode), lambda: at_start, at_start, requests))
        name = at_start if answer is None else answer
        return name if inode == self.node else distinct_name(name, inode)

    def own_name(self) -> Netns:
        return HOST if self.own and self.own == self.node else self._names.get(self.own, NO_NETNS)

    def named(self) -> list[int]:
        return list(self._names)

    def find(self, name: str) -> int:
        for inode in self._names:
            if self.name(inode) == name:
                return inode
        raise BadOption(f"There is no network namespace {name!r} in this capture.")


class JournaledPrograms:
    """Programs at interfaces, for drops.

    Args:
        journal: Gives the answers.
        live: The programs of this machine; None in a replay.
    """

    def __init__(self, journal: Journal, live: AttachedPrograms | None = None) -> None:
        self._journal, self._live = journal, live

    def periods(self, netns: int, ifindex: int, point: AttachPoint, time: int) -> Sequence[ProgramPeriod] | None:
        return value_of(
            self._journal(
                ("programs", netns, ifindex, point.value),
                lambda: tuple((self._live.periods(netns, ifindex, point, time) if self._live else None) or ()),
                tuple[ProgramPeriod, ...](),
            )
        )


def journaled_function(journal: Journal, function: Callable[[int], str]) -> Callable[[int], str]:
    """`function` through the journal: gives the kernel function at an address, "" = not known."""
    return lambda address: value_of(journal(("function", address), lambda: function(address), "")) or ""
