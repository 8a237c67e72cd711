# SPDX-License-Identifier: Apache-2.0
"""What was lost or left out, counted by cause."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    pass

LEFT_OUT = "packet"
"""What stands for a probe where whole packets were left out."""
NO_ROOM = "the ring buffer was full"
"""Why an event is lost whose number its packet lacks: the number is taken before there is found to be no room."""


@dataclass(frozen=True)
class Loss:
    """`count` events of a probe lost since the counters were last read, or packets of which not one event was written (probe
    LEFT_OUT). cpu -1 = not known by CPU. since, until: when the counter was read before, and now: it was lost in between; ns,
    CLOCK_MONOTONIC, 0 = not known."""

    probe: str
    cpu: int
    count: int
    why: str
    since: int = 0
    until: int = 0

    @property
    def numbered(self) -> bool:
        """Whether a later event of the same packet shows that this one is missing."""
        return self.why == NO_ROOM
