# SPDX-License-Identifier: Apache-2.0
"""Records and replays the events between packets: replaced rules and objects, and events of conntrack entries.

An event is recorded with the batch that read it, and a replay returns it in the same batch. Events are not decoded here: a
replay reads the recorded netlink messages.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TypeVar

from tracer.capture.record.buffer import RecordBuffer
from tracer.connections.change_log import ChangeLog
from tracer.connections.conntrack_events import ConntrackListener, Datagram, removing_ports
from tracer.kube.store import ObjectStore
from tracer.model.timeline import TimelineEntry
from tracer.rules.rule_resolver import RuleResolver
from tracer.util.questions import Journal, value_of

T = TypeVar("T")
NOT_IN_CAPTURE = "conntrack events are not in this capture"


class RecordedChangeLog(ChangeLog):
    """A change log that records its changes."""

    def __init__(self, buffer: RecordBuffer) -> None:
        super().__init__()
        self._buffer = buffer

    def read(self) -> list[TimelineEntry]:
        found = super().read()
        if found:
            self._buffer.add_changes(found)
        return found


class ReplayedChangeLog:
    """Gives the recorded changes of a batch.

    Attributes:
        pending: changes of the current batch.
        lost: always 0: what the recorded run lost is one of its messages.
    """

    lost = 0

    def __init__(self) -> None:
        self.pending: list[TimelineEntry] = []

    def connect(self, rules: RuleResolver, store: ObjectStore) -> None:
        """Does nothing: the rules and objects that the replay itself loads are not changes."""

    def read(self) -> list[TimelineEntry]:
        return _take_all(self.pending)


class RecordedConntrackListener:
    """Records conntrack events. It always listens, because a reader of the capture may need them.

    Attributes:
        ports: ports of the request; empty = all. Only messages that contain one of these numbers are recorded: a message has
            both tuples of its connection.
    """

    def __init__(self, buffer: RecordBuffer, listener: ConntrackListener) -> None:
        self._buffer, self._listener = buffer, listener
        self._names: dict[int, str] = {}
        self.ports: Collection[int] = ()
        self.lost = 0

    def listen(self, is_requested: bool) -> str:
        return journaled_reason(self._buffer.journal, self._listener.listen(True))

    def read(self) -> list[Datagram]:
        numbers = [port.to_bytes(2, "big") for port in self.ports]
        found = [d for d in self._listener.read() if not numbers or any(n in d[1] for n in numbers)]
        if found:
            self._buffer.add_entries(found)
        self._names = journaled_names(self._buffer.journal, found, self._listener)
        self.lost = journaled_lost(self._buffer.journal, self._listener.lost)
        return found

    def process(self, port: int) -> str:
        return self._names.get(port, "")

    def close(self) -> None:
        self._listener.close()


class ReplayedConntrackListener:
    """Gives the recorded conntrack events of a batch.

    Attributes:
        pending: events of the current batch.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._names: dict[int, str] = {}
        self.pending: list[Datagram] = []
        self.lost = 0

    def listen(self, is_requested: bool) -> str:
        return journaled_reason(self._journal, NOT_IN_CAPTURE)

    def read(self) -> list[Datagram]:
        found = _take_all(self.pending)
        self._names = journaled_names(self._journal, found, None)
        self.lost = journaled_lost(self._journal, 0)
        return found

    def process(self, port: int) -> str:
        return self._names.get(port, "")

    def close(self) -> None: ...


# A live run and its replay ask the questions in the same order.


def journaled_reason(journal: Journal, reason: str) -> str:
    answer = value_of(journal(("conntrack events", "why not"), lambda: reason, NOT_IN_CAPTURE))
    return NOT_IN_CAPTURE if answer is None else answer


def journaled_lost(journal: Journal, found: int) -> int:
    """Number of lost messages; 0 also where it was not asked: then the run had not listened."""
    return value_of(journal(("conntrack events", "lost"), lambda: found, 0)) or 0


def journaled_names(journal: Journal, found: Iterable[Datagram], listener: ConntrackListener | None) -> dict[int, str]:
    """The processes that have the netlink ports that removed entries, by port."""
    ports = {port for _, data in found for port in removing_ports(data)}
    return {port: _journaled_name(journal, port, listener) for port in sorted(ports)}


def _journaled_name(journal: Journal, port: int, listener: ConntrackListener | None) -> str:
    def ask() -> str:
        return listener.process(port) if listener else ""

    default = f"netlink port {port}"
    name = value_of(journal(("netlink port", port), ask, default))
    return default if name is None else name


def _take_all(pending: list[T]) -> list[T]:
    found = pending[:]
    pending.clear()
    return found
