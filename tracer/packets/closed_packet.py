# SPDX-License-Identifier: Apache-2.0
"""What is kept of a closed packet, so that late events can be attached."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tracer.events import record
from tracer.events.record import Event
from tracer.model.endpoints import Endpoints
from tracer.packets import header_tracker
from tracer.packets.open_packet import OpenPacket
from tracer.packets.shared_packet import SharedPacket


class ClosedPacket(NamedTuple):
    """A closed packet.

    Attributes:
        began: Time of its first hop, ns, CLOCK_MONOTONIC.
        last: Time of its last hop, ns, CLOCK_MONOTONIC.
        next: Number of its next event.
        complete: Whether no event of it was lost.
        endpoints: Its addresses as it came in.
        first: Its first event with a header.
        whole: Its last event with a whole header, None = unknown.
    """

    began: int
    last: int
    next: int
    complete: bool
    endpoints: Endpoints
    first: Event
    whole: Event | None

    def headers(self) -> ClosedPacket:
        return self


class ClosedSharedPacket(NamedTuple):
    """A closed packet that took a shared path: its headers are decoded when a late event comes, which is rare.

    Attributes:
        began: Time of its first hop, ns, CLOCK_MONOTONIC.
        last: Time of its last row, ns, CLOCK_MONOTONIC.
        next: Number of its next event.
        endpoints: Its addresses as it came in.
        rows: Its first event with a header, its last whole event, and the rewrites after that.
    """

    began: int
    last: int
    next: int
    endpoints: Endpoints
    rows: bytes

    @classmethod
    def of(cls, shared: SharedPacket, opened: OpenPacket, order: Sequence[int]) -> ClosedSharedPacket:
        """What is kept of a packet that was filled in from a template. order: places of its rows, in the order of time."""
        times, places = shared.times, shared.way.rows
        rows = opened.chosen(places.late, order)
        return cls._make((times[places.began], times[-1], len(times), shared.way.sample.endpoints, rows))

    def headers(self) -> ClosedPacket:
        """The packet with its headers."""
        events = [e for e in record.events(np.frombuffer(self.rows, record.DTYPE)) if isinstance(e, Event)]
        _, whole = header_tracker.complete_events(events)
        return ClosedPacket(self.began, self.last, self.next, True, self.endpoints, events[0], whole)
