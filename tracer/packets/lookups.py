# SPDX-License-Identifier: Apache-2.0
"""What explaining a packet looks up outside of its rows: names of namespaces, owners of sockets, names of kernel functions."""

from __future__ import annotations

from collections.abc import Callable

from tracer.node.namespaces import NamespaceNames
from tracer.node.processes import SocketOwners


class Lookups:
    """The look-ups of one packet at a time.

    A packet may be looked up twice: to find an earlier packet with the same path, and, without one, to be explained from its
    rows. The second time gets the answers of the first. So both agree, and a recording counts each request once.

    Args:
        namespaces: Names of network namespaces, by inode.
        processes: Processes that own sockets.
        function: Gives the name of the kernel function that contains an address.

    Attributes:
        is_consistent: No question of this packet has had two answers.
    """

    def __init__(self, namespaces: NamespaceNames, processes: SocketOwners, function: Callable[[int], str]) -> None:
        self._namespaces, self._processes, self._function = namespaces, processes, function
        self._names: dict[int, str] = {}
        self._owners: dict[int, tuple[int, str]] = {}
        self._functions: dict[int, str] = {}
        self._is_settled, self.is_consistent = False, True

    def begin(self) -> None:
        """Begins the next packet."""
        self._names.clear()
        self._owners.clear()
        self._functions.clear()
        self._is_settled, self.is_consistent = False, True

    def settle(self) -> None:
        """From now on questions that were asked have the same answers until the next packet."""
        self._is_settled = True

    def name(self, inode: int, requests: int = 1) -> str:
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
