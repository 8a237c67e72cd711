# SPDX-License-Identifier: Apache-2.0
"""The periods of one place: how long the same programs were attached there, as far as readings show it."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from tracer.kernel.attached_programs import Attached
from tracer.model.bpf_program import ProgramPeriod

PERIODS_KEPT = 16
"""Most periods of one place; the oldest ones are left out."""


class ProgramHistory:
    """The periods of one place.

    Attributes:
        attached: What was attached at the last reading.
        since: When that had been read first, ns, CLOCK_MONOTONIC.
        last: Begin of the last reading, ns, CLOCK_MONOTONIC.
        before: Earlier periods.
    """

    def __init__(self, attached: Attached, since: int, last: int = 0, before: Sequence[ProgramPeriod] = ()) -> None:
        self.attached, self.since, self.last = attached, since, last
        self.before: deque[ProgramPeriod] = deque(before, PERIODS_KEPT - 1)

    def change(self, attached: Attached, since: int) -> None:
        """Begins a period. since: when its programs had been read."""
        self.before.append(ProgramPeriod(self.since, max(self.last, self.since), self.attached.programs))
        self.attached, self.since = attached, since

    def periods(self, time: int) -> tuple[ProgramPeriod, ...]:
        """The periods, for a drop at this time, ns, CLOCK_MONOTONIC."""
        until = 0 if self.last > time else max(self.last, self.since)
        return (*self.before, ProgramPeriod(self.since, until, self.attached.programs))
