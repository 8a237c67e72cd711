# SPDX-License-Identifier: Apache-2.0
"""Questions about a network namespace that causes of SYNs ask. A cause declares them as its ASKS, as a finding does."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Generic, ParamSpec, TypeVar

from tracer.model.namespace_name import Netns
from tracer.node.namespace_view import NamespaceReader
from tracer.node.node import KEPT_SECONDS, VOLATILE_SECONDS
from tracer.node.node_questions import Occasion
from tracer.node.processes import NOT_RECORDED
from tracer.node.procnet import BoundSocket
from tracer.util.questions import Answer, Journal, Known, NotAsked, live

P = ParamSpec("P")
T = TypeVar("T")


class NamespaceQuestion(ABC, Generic[P, T]):
    """A question with arguments P and answer T. A namespace is given by the name that hops have."""

    @abstractmethod
    def ask(self, reader: NamespaceReader, journal: Journal, /, *args: P.args, **kwargs: P.kwargs) -> Answer[T]:
        """Asks through the journal; `reader` reads the machine."""

    @abstractmethod
    def prefetch(self, reader: NamespaceReader, journal: Journal, occasion: Occasion) -> None:
        """Asks what a cause may ask about the SYNs of a batch."""


@dataclass(frozen=True)
class NamespaceSetting(NamespaceQuestion[[Netns], str]):
    """A sysctl of a namespace; "" = no such sysctl, or the namespace cannot be read.

    Attributes:
        name: Its path, "net/ipv4/tcp_syncookies".
        is_volatile: Its value after a dropped packet is needed.
    """

    name: str
    is_volatile: bool = False

    def ask(self, reader: NamespaceReader, journal: Journal, namespace: Netns, /) -> Answer[str]:
        kept = VOLATILE_SECONDS if self.is_volatile else KEPT_SECONDS
        return journal(("space", namespace, self.name), lambda: reader.setting(namespace, self.name, kept), "")

    def prefetch(self, reader: NamespaceReader, journal: Journal, occasion: Occasion) -> None:
        for namespace in sorted({*occasion.namespaces, *(occasion.drop_namespaces if self.is_volatile else ())}):
            self.ask(reader, journal, namespace)


@dataclass(frozen=True)
class NamespaceListeners(NamespaceQuestion[[Netns], tuple[BoundSocket, ...]]):
    """The listening TCP sockets of a namespace; () also if it cannot be read. Those at the time of a dropped SYN are needed."""

    def ask(self, reader: NamespaceReader, journal: Journal, namespace: Netns, /) -> Answer[tuple[BoundSocket, ...]]:
        return journal(("space", namespace, "bound"), lambda: reader.bound(namespace), tuple[BoundSocket, ...]())

    def prefetch(self, reader: NamespaceReader, journal: Journal, occasion: Occasion) -> None:
        for namespace in sorted({*occasion.namespaces, *occasion.drop_namespaces}):
            self.ask(reader, journal, namespace)


@dataclass(frozen=True)
class ListenerProcess(NamespaceQuestion[[int], str]):
    """The process that holds a listening socket, given by its inode: "nginx (pid 42)"; "" = not found.

    It is asked ahead only where packets were dropped: a cause asks it where no socket took the SYN.
    """

    def ask(self, reader: NamespaceReader, journal: Journal, inode: int, /) -> Answer[str]:
        # The reader's processes have the journal themselves, because packets ask for them, too.
        pid, command = owner = reader.owner(inode)
        if owner == NOT_RECORDED:
            return NotAsked(("process", inode))
        return Known(f"{command} (pid {pid})" if pid else "")

    def prefetch(self, reader: NamespaceReader, journal: Journal, occasion: Occasion) -> None:
        for namespace in occasion.drop_namespaces:
            sockets = NamespaceListeners().ask(reader, journal, namespace)
            for bound in sockets.value if isinstance(sockets, Known) else ():
                self.ask(reader, journal, bound.inode)


class NamespaceInspector:
    """Answers questions about namespaces: live, recorded, or from a capture."""

    def __init__(self, reader: NamespaceReader | None = None, journal: Journal = live) -> None:
        self.reader, self.journal = reader or NamespaceReader(), journal

    def ask(self, question: NamespaceQuestion[P, T], *args: P.args, **kwargs: P.kwargs) -> Answer[T]:
        """Asks a question of ASKS."""
        return question.ask(self.reader, self.journal, *args, **kwargs)

    def names(self) -> Answer[list[Netns]]:
        """Names of the namespaces that have a name now."""
        return self.journal(("space names",), self.reader.names, list[Netns]())

    def counters(self, namespace: Netns) -> Answer[dict[str, int]]:
        """The kernel's counters at this time; {} = they cannot be read."""
        return self.journal(("space", namespace, "counters"), lambda: self.reader.counters(namespace), dict[str, int]())
