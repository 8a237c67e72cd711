"""Joins packets and rules: the walk of each table run, and which rule a connection's translation came from.

Only the first packet of a connection is asked of the nat table; its later packets, and the replies, are rewritten by what
conntrack remembers. So the rule is remembered here by the connection's original tuple, zone and namespace.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tracer.record import HOOKS, Event, Flag, Kind
from tracer.rules import steps
from tracer.rules.legacy import Legacy
from tracer.rules.model import Walk
from tracer.rules.steps import Noted

CONNECTIONS_KEPT = 65536
DESTINATION_HOOKS = (HOOKS.index("PREROUTING"), HOOKS.index("OUTPUT"))
"""Where the nat table changes destinations; elsewhere it changes sources."""
NEW = 2
"""Of event.ct_info: no packet of this connection has left yet."""
BEFORE = Walk(undecided="decided before tracing began")
LOST = Walk(undecided="the packet that decided was not seen: events were lost")


@dataclass(frozen=True)
class _Decided:
    """A connection's translation on one side: by which packet, and its walk through the nat table.

    walk: None = no legacy table was asked, so something else translates here.
    """

    packet: int
    walk: Walk | None


class Hits:
    """What rules did to packets. legacy: None = this run cannot tell."""

    def __init__(self, legacy: Legacy | None = None) -> None:
        self._legacy = legacy
        self._noted: dict[int, dict[tuple[int, int], list[Noted]]] = {}
        self._connections: OrderedDict[object, _Decided] = OrderedDict()
        self._lost = False

    def take(self, batch: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Takes out of a batch what is not an event; returns the events. To be called for every drain, also an empty one."""
        events, rows, rulesets = steps.split(batch)
        if self._legacy:
            for packet, place, noted in steps.noted(rows):
                self._noted.setdefault(packet, {}).setdefault(place, []).append(noted)
            self._legacy.note(steps.changes(rulesets))
            tables = events[events["kind"] == Kind.EVENT_TABLE]
            for at in np.unique(tables["object"], return_index=True)[1] if len(tables) else ():
                self._legacy.want(steps.event(tables[at]))
        return events

    def waits(self, events: Iterable[Event]) -> bool:
        """Whether rules that acted on a packet are being read."""
        legacy = self._legacy
        return legacy is not None and any(legacy.waits(e) for e in events if e.kind == Kind.EVENT_TABLE)

    def explain(self, e: Event) -> dict[str, Any]:
        """The fields of an event's hop that tell which rules acted. To be called in the order of a packet's events."""
        if not self._legacy:
            return {}
        if e.kind == Kind.EVENT_TABLE:
            walk = self._legacy.walk(e, self._noted.get(e.packet, {}).get((e.time, e.skb), []))
            if e.flags & Flag.FLAG_HAS_CT and e.table.split(b"\0")[0] == b"nat":
                self._remember(_connection(e, e.hook in DESTINATION_HOOKS), _Decided(e.packet, walk))
            return {"walk": walk}
        if e.kind == Kind.EVENT_NAT:
            # In the reply direction a rewritten source undoes a DNAT.
            connection = _connection(e, bool(e.manip & 1) != bool(e.manip & 2))
            decided = self._connections.get(connection)
            if not decided and e.ct_info == NEW:
                decided = _Decided(e.packet, None)
                self._remember(connection, decided)
            caused = decided.walk if decided else LOST if self._lost else BEFORE
            return {"walk": caused, "from_conntrack": not decided or decided.packet != e.packet}
        return {}

    def over(self, packet: int) -> None:
        """A packet has been explained: what was noted for it is no longer needed."""
        self._noted.pop(packet, None)

    def doubt(self) -> None:
        """Events were lost: a connection may be another one by now."""
        self._connections.clear()
        self._lost = True

    def close(self) -> None:
        """Ends the reading of rules; what has been read stays known."""
        if self._legacy:
            self._legacy.close()

    def _remember(self, connection: object, decided: _Decided) -> None:
        self._connections[connection] = decided
        self._connections.move_to_end(connection)
        if len(self._connections) > CONNECTIONS_KEPT:
            self._connections.popitem(last=False)


def _connection(e: Event, destination: bool) -> object:
    return (destination, e.netns, e.zone, e.protocol, e.orig_src, e.orig_sport, e.orig_dst, e.orig_dport)
