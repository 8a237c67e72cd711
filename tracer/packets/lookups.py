# SPDX-License-Identifier: Apache-2.0
"""What explaining a packet looks up outside of its rows: namespaces, owners of sockets, kernel functions, eBPF programs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from tracer.model.bpf_program import AttachPoint, ProgramPeriod
from tracer.model.namespace_name import Netns
from tracer.node.namespaces import NamespaceNames
from tracer.node.processes import SocketOwners
from tracer.packets.program_drops import AttachedPrograms, NoPrograms

_Namespaces: TypeAlias = tuple[tuple[int, int], ...]
"""Inodes of namespaces, and the number of requests for the name of each."""


class Lookups:
    """The look-ups of one packet at a time.

    A packet may be looked up twice: to find an earlier packet with the same path, and, without one, to be explained from its
    rows. The second time gets the answers of the first. So both agree, and a recording counts each request once.

    Args:
        namespaces: Names of network namespaces, by inode.
        processes: Processes that own sockets.
        function: Gives the name of the kernel function that contains an address.
        version: Gives a number that changes before any answer changes, as in a replay. None = each question has to be asked.
        programs: eBPF programs at interfaces; None = they are not known.

    Attributes:
        is_consistent: No question of this packet has had two answers.
    """

    def __init__(
        self,
        namespaces: NamespaceNames,
        processes: SocketOwners,
        function: Callable[[int], str],
        version: Callable[[], int] | None = None,
        programs: AttachedPrograms | None = None,
    ) -> None:
        self._programs: AttachedPrograms = programs or NoPrograms()
        self._namespaces, self._processes, self._function, self._version = namespaces, processes, function, version
        self._names: dict[int, Netns] = {}
        self._owners: dict[int, tuple[int, str]] = {}
        self._functions: dict[int, str] = {}
        self._ahead: tuple[_Namespaces, tuple[Netns, ...]] | None = None
        self._is_settled, self.is_consistent = False, True

    @property
    def version(self) -> int | None:
        """Equal as long as each question has the answer that it had; None = not known."""
        return self._version() if self._version else None

    def begin(self) -> None:
        """Begins the next packet."""
        if self._names:
            self._names.clear()
        if self._owners:
            self._owners.clear()
        if self._functions:
            self._functions.clear()
        self._ahead, self._is_settled, self.is_consistent = None, False, True

    def settle(self) -> None:
        """From now on questions that were asked have the same answers until the next packet."""
        if self._ahead:
            namespaces, found = self._ahead
            self._names.update({inode: name for (inode, _), name in zip(namespaces, found, strict=True)})
        self._ahead, self._is_settled = None, True

    def names(self, namespaces: _Namespaces) -> tuple[Netns, ...]:
        """The names of the namespaces of a packet. namespaces: their inodes, and how often each name is used."""
        if self._is_settled:
            return tuple([self.name(inode, requests) for inode, requests in namespaces])
        name = self._namespaces.name
        found = tuple([name(inode, requests) for inode, requests in namespaces])
        self._ahead = namespaces, found
        return found

    def name(self, inode: int, requests: int = 1) -> Netns:
        """The name of a network namespace. requests: how often it is used, see Journal."""
        if self._is_settled and inode in self._names:
            return self._names[inode]
        found = self._namespaces.name(inode, requests)
        if self._names.setdefault(inode, found) != found:
            self.is_consistent = False
        return found

    def owner(self, inode: int) -> tuple[int, str]:
        """(pid, command) of a process that holds a socket."""
        if self._is_settled and inode in self._owners:
            return self._owners[inode]
        found = self._processes.owner(inode)
        if self._owners.setdefault(inode, found) != found:
            self.is_consistent = False
        return found

    def function(self, address: int) -> str:
        """The name of the kernel function that contains an address."""
        if self._is_settled and address in self._functions:
            return self._functions[address]
        found = self._function(address)
        if self._functions.setdefault(address, found) != found:
            self.is_consistent = False
        return found

    def programs(self, netns: int, ifindex: int, point: AttachPoint, time: int) -> Sequence[ProgramPeriod] | None:
        """The eBPF programs at a place of an interface. Only for what they did: such a packet is explained once."""
        return self._programs.periods(netns, ifindex, point, time)
