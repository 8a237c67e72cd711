# SPDX-License-Identifier: Apache-2.0
"""What became of the Events, as numbers. The thread that sends counts, threads that serve metrics read."""

from __future__ import annotations

from enum import StrEnum

from tracer.util.locked_counts import LockedCounts


class EventResult(StrEnum):
    """What became of one Event, or of one change of an Event."""

    CREATED = "created"
    UPDATED = "updated"
    SHED = "shed"
    """Not sent: too many findings at once, the API was away for too long, or the run has ended."""
    REFUSED = "refused"
    """Not accepted by the API."""


class EventCounts(LockedCounts[str]):
    """The numbers by result; each result is there from the beginning."""

    def __init__(self) -> None:
        super().__init__(result.value for result in EventResult)
