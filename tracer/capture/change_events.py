# SPDX-License-Identifier: Apache-2.0
"""What happens between packets, on tape and from it: rules and objects that are replaced, and what conntrack tells.

It is kept when a turn takes it, and counts in that turn again. Nothing of it is explained here: a replay reads what netlink
said.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TypeVar

from tracer.capture.record.buffer import RecordBuffer
from tracer.connections.change_log import ChangeLog
from tracer.connections.conntrack_events import ConntrackListener, Datagram, removing_ports
from tracer.model.timeline import TimelineEntry
from tracer.util.asking import Journal, answered

T = TypeVar("T")
UNKNOWN = "conntrack's events are not in this capture"


class RecordedChangeLog(ChangeLog):
    """Changes that go on tape."""

    def __init__(self, buffer: RecordBuffer) -> None:
        super().__init__()
        self._buffer = buffer

    def read(self) -> list[TimelineEntry]:
        found = super().read()
        if found:
            self._buffer.changes(found)
        return found


class ReplayedChangeLog(ChangeLog):
    """Those of the turn. Rules that are read and objects that come in a replay were told of then."""

    def __init__(self) -> None:
        super().__init__()
        self.coming: list[TimelineEntry] = []

    def read(self) -> list[TimelineEntry]:
        return _taken(self.coming)


class RecordedConntrackListener:
    """What conntrack tells, on tape; always listened to, for whoever reads the capture may ask.

    ports: of what was asked for, none = all. A message has both tuples of its connection, so it has one of them.
    """

    def __init__(self, buffer: RecordBuffer, of: ConntrackListener) -> None:
        self._buffer, self._of = buffer, of
        self._names: dict[int, str] = {}
        self.ports: Collection[int] = ()
        self.lost = 0

    def listen(self, wanted: bool) -> str:
        return why(self._buffer.ask, self._of.listen(True))

    def read(self) -> list[Datagram]:
        numbers = [port.to_bytes(2, "big") for port in self.ports]
        found = [d for d in self._of.read() if not numbers or any(n in d[1] for n in numbers)]
        if found:
            self._buffer.entries(found)
        self._names = names(self._buffer.ask, found, self._of)
        self.lost = lost(self._buffer.ask, self._of.lost)
        return found

    def process(self, port: int) -> str:
        return self._names.get(port, "")

    def close(self) -> None:
        self._of.close()


class ReplayedConntrackListener:
    """What conntrack told then."""

    def __init__(self, journal: Journal) -> None:
        self._asking = journal
        self._names: dict[int, str] = {}
        self.coming: list[Datagram] = []
        self.lost = 0

    def listen(self, wanted: bool) -> str:
        return why(self._asking, UNKNOWN)

    def read(self) -> list[Datagram]:
        found = _taken(self.coming)
        self._names = names(self._asking, found, None)
        self.lost = lost(self._asking, 0)
        return found

    def process(self, port: int) -> str:
        return self._names.get(port, "")

    def close(self) -> None: ...


# The questions are asked in the same order live and in a replay.


def why(journal: Journal, found: str) -> str:
    return answered(lambda: journal(("conntrack events", "why not"), lambda: found, UNKNOWN), UNKNOWN)


def lost(journal: Journal, found: int) -> int:
    return answered(lambda: journal(("conntrack events", "lost"), lambda: found, 0), 0)


def names(journal: Journal, found: Iterable[Datagram], of: ConntrackListener | None) -> dict[int, str]:
    """Who has the netlink ports that removed entries."""
    ports = {port for _, data in found for port in removing_ports(data)}
    return {port: _name(journal, port, of) for port in sorted(ports)}


def _name(journal: Journal, port: int, of: ConntrackListener | None) -> str:
    known = f"netlink port {port}"
    return answered(lambda: journal(("netlink port", port), lambda: of.process(port) if of else "", known), known)


def _taken(coming: list[T]) -> list[T]:
    found = coming[:]
    coming.clear()
    return found
