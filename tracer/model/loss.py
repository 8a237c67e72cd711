# SPDX-License-Identifier: Apache-2.0
"""Lost events and shed packets, counted by cause."""

from __future__ import annotations

from dataclasses import dataclass

LEFT_OUT = "packet"
"""Value of Loss.probe for packets that were shed as a whole."""
RING_NEARLY_FULL = "the ring buffer was nearly full"
OPENINGS_LEFT_OUT = "over the budget, packets that open connections are left out"
FAILURES_LEFT_OUT = "over the budget, packets that fail are left out"
SHED_KINDS = {RING_NEARLY_FULL: "any", OPENINGS_LEFT_OUT: "openings", FAILURES_LEFT_OUT: "failures"}
"""Kind of the packets that were shed, by cause; "any" = it is not known what would have become of them."""
NO_ROOM = "the ring buffer was full"
"""The cause of a loss that leaves a gap in the packet's event numbers: the number is taken before the space is reserved."""


@dataclass(frozen=True)
class Loss:
    """Events lost, or packets shed, since the counters were last read.

    Attributes:
        probe: The probe that lost events; LEFT_OUT = packets without any written event, or with that of their failure alone.
        cpu: The CPU, -1 = not counted by CPU.
        count: Number of events or packets.
        why: The cause.
        since: Time of the previous reading of the counter, ns, CLOCK_MONOTONIC; 0 = not known.
        until: Time of this reading, ns, CLOCK_MONOTONIC; 0 = not known. The loss happened between the two.
    """

    probe: str
    cpu: int
    count: int
    why: str
    since: int = 0
    until: int = 0

    @property
    def numbered(self) -> bool:
        """Whether a later event of the same packet shows the gap."""
        return self.why == NO_ROOM
