# SPDX-License-Identifier: Apache-2.0
"""Answers of this machine for the packets of one chunk: each name of a namespace and each owner of a socket is asked for once.

A packet is explained up to a quarter of a second after it passed, so an answer that is as old as the chunk, some milliseconds,
is as good as a new one. All packets of a connection in one chunk then share what was looked up for the first of them.

A recording asks for each packet, because a replay repeats the questions one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tracer.model.namespace_name import Netns
from tracer.node.namespaces import NamespaceNames
from tracer.node.processes import SocketOwners
from tracer.pipeline.assembly import AssemblyParts


class AnswerPeriod:
    """The time in which answers stay the same.

    Attributes:
        number: Number of the period; it grows.
    """

    def __init__(self) -> None:
        self.number = 0
        self._ends: list[Callable[[], None]] = []

    def end(self) -> None:
        """Ends the period: from now on everything is asked again."""
        self.number += 1
        for end in self._ends:
            end()

    def hold(self, parts: AssemblyParts) -> AssemblyParts:
        """The parts, with names of namespaces and kernel functions and owners of sockets that stay the same in a period."""
        names, owners = PeriodNames(parts.namespaces), PeriodOwners(parts.processes)
        functions = dict[int, str]()
        function = parts.names.function

        def known_function(address: int) -> str:
            if address not in functions:
                functions[address] = function(address)
            return functions[address]

        self._ends += [names.forget, owners.forget, functions.clear]
        return replace(parts, namespaces=names, processes=owners, names=replace(parts.names, function=known_function))


class PeriodNames:
    """Names of network namespaces, each looked up once in a period. namespaces: gives them."""

    def __init__(self, namespaces: NamespaceNames) -> None:
        self._namespaces = namespaces
        self._names: dict[int, Netns] = {}
        self.node, self.own = namespaces.node, namespaces.own
        self.own_name, self.named, self.find = namespaces.own_name, namespaces.named, namespaces.find

    def name(self, inode: int, requests: int = 1) -> Netns:
        """As NamespaceNames."""
        found = self._names.get(inode)
        if found is None:
            found = self._names[inode] = self._namespaces.name(inode, requests)
        return found

    def forget(self) -> None:
        """Begins the next period."""
        self._names.clear()


class PeriodOwners:
    """Owners of sockets, each looked up once in a period. processes: gives them."""

    def __init__(self, processes: SocketOwners) -> None:
        self._processes = processes
        self._owners: dict[int, tuple[int, str]] = {}

    def owner(self, inode: int) -> tuple[int, str]:
        """As SocketOwners."""
        found = self._owners.get(inode)
        if found is None:
            found = self._owners[inode] = self._processes.owner(inode)
        return found

    def forget(self) -> None:
        """Begins the next period."""
        self._owners.clear()
