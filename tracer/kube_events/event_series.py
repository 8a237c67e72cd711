# SPDX-License-Identifier: Apache-2.0
"""What one Event stands for, and how many packets of it the API knows."""

from __future__ import annotations

from dataclasses import dataclass, field

from tracer.model.finding import Finding
from tracer.model.kube import ObjectReference


@dataclass
class EventSeries:
    """The packets of one cause and one object, without a longer pause among them.

    Attributes:
        finding: The finding.
        about: The object that the finding names, or the node.
        first: Time of the first packet, ns since the epoch.
        last: Time of the last packet, ns since the epoch.
        count: Number of packets.
        seen_at: When the last packet was taken, s.
        is_combined: It stands for several causes of one name.
        sent: Number of packets that the API knows; 0 = there is no Event yet.
        name: Name of the Event; "" = none was chosen.
        regarding: The object as the API has it; empty = it was not looked up.
        waits_since: Since when there is something to send, s.
        not_before: When it may be sent, s.
        is_refused: The API refused it the last time.
    """

    finding: Finding
    about: ObjectReference
    first: int
    last: int
    count: int
    seen_at: float
    is_combined: bool
    sent: int = 0
    name: str = ""
    regarding: dict[str, str] = field(default_factory=dict)
    waits_since: float = 0.0
    not_before: float = 0.0
    is_refused: bool = False

    @property
    def has_news(self) -> bool:
        """Whether the API does not know all of it."""
        return self.count > self.sent

    def add(self, count: int, last: int, now: float) -> None:
        """Adds packets. last: time of the last one, ns since the epoch. now: a monotonic time, s."""
        self.waits_since = self.waits_since if self.has_news else now
        self.count += count
        self.last, self.seen_at = max(self.last, last), now
