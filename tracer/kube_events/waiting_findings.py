# SPDX-License-Identifier: Apache-2.0
"""Findings on their way from the thread of the run to the thread that sends Events. Adding one never waits for the API."""

from __future__ import annotations

import threading
from collections.abc import Hashable
from dataclasses import dataclass

from tracer.kube_events.event_counts import EventCounts, EventResult
from tracer.model.finding import Finding

MOST_WAITING = 256
"""Largest number of different findings that wait for the thread. It takes all of them at once, several times a second."""


@dataclass
class WaitingFinding:
    """A finding and what showed it since the thread took it last.

    Attributes:
        finding: The finding.
        first: Time of the first of these packets, ns since the epoch.
        last: Time of the last one.
        count: Their number.
    """

    finding: Finding
    first: int
    last: int
    count: int = 1


class WaitingFindings:
    """At most MOST_WAITING findings; further ones are counted as shed. counts: where they are counted."""

    def __init__(self, counts: EventCounts) -> None:
        self._counts = counts
        self._waiting: dict[Hashable, WaitingFinding] = {}
        self._lock = threading.Lock()

    def add(self, finding: Finding, at: int, is_new: bool = True) -> None:
        """Takes a finding.

        Args:
            finding: The finding.
            at: Time of the packet that shows it, ns since the epoch.
            is_new: It is counted if there is no room. An earlier one comes again with its next packet.
        """
        key = finding.name, finding.key
        with self._lock:
            waiting = self._waiting.get(key)
            if waiting:
                waiting.count += 1
                waiting.last = max(waiting.last, at)
            elif len(self._waiting) < MOST_WAITING:
                self._waiting[key] = WaitingFinding(finding, at, at)
            elif is_new:
                self._counts.add(EventResult.SHED)

    def read(self) -> list[WaitingFinding]:
        """Removes and returns the findings, in the order in which they came."""
        with self._lock:
            waiting, self._waiting = self._waiting, {}
        return list(waiting.values())
