# SPDX-License-Identifier: Apache-2.0
"""Pairs of programs for the calls for which the kernel skips a program, on nodes where that happens.

While a program runs for a packet that a process sends, an interrupt may come, and its softirq's packets meet the same program:
the kernel skips it for them. On a node with a busy network card and local senders that happens many times a second, and each
time packets that are under way are incomplete. Of two programs at each function one handles such a call
(bpf/core/nested_call.h). Pairs cost more time for each packet than single programs, so they take their place only when
programs have been skipped.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence

from tracer.kernel.attach_plan import PlannedProbe
from tracer.kernel.loaded_programs import LoadedPrograms
from tracer.kernel.loss_counters import LossCounters
from tracer.util.worker import Worker, user_warnings

SKIPS, SKIPS_SECONDS = 2, 60.0
"""The pairs are attached after so many readings with skipped programs within so many seconds."""
MOST_SECONDS = 30.0
"""Longest wait for programs that are being loaded, s."""
DOUBTFUL = "This kernel does not run the probes of one function in the expected order: single probes are attached again."


class ProgramPairs:
    """Lets pairs take the place of the single programs, once, in a thread of its own, because the verifier takes a second.

    Args:
        programs: The loaded programs.
        rows: The attached rows.
        counters: Counts the calls that no program handles.

    Attributes:
        are_on: They handle the calls.
    """

    def __init__(self, programs: LoadedPrograms, rows: Sequence[PlannedProbe], counters: LossCounters) -> None:
        self._programs, self._rows, self._counters = programs, rows, counters
        self._skips: deque[float] = deque(maxlen=SKIPS)
        self._skips_noted = 0
        self._thread: Worker | None = None
        self._attached: Mapping[int, int] | None = None
        self._is_tried = self.are_on = False

    def note(self) -> None:
        """Takes the next step that the counters demand. To be called after each reading of them."""
        if self._thread is None:
            if self._are_skipped_often():
                self._thread = Worker("pairs of probes", self._attach).start()
        elif self._attached is not None:
            seconds, self._attached = self._attached, None
            self._counters.count_seconds(seconds)
            self.are_on = bool(seconds)
        elif self.are_on and self._counters.is_doubtful:
            self.are_on = False
            user_warnings.add(DOUBTFUL)
            try:
                self._programs.use_single_programs(self._rows)
            except OSError as e:
                user_warnings.add_failure("attaching a single probe again", e)
            self._counters.count_seconds({})

    def _are_skipped_often(self) -> bool:
        """Notes the time of new readings with skipped programs."""
        now, new = time.monotonic(), self._counters.skips - self._skips_noted
        self._skips_noted += new
        self._skips.extend([now] * min(new, SKIPS))
        return len(self._skips) == SKIPS and now - self._skips[0] <= SKIPS_SECONDS

    def _attach(self) -> bool:
        """Tries it once. Returns False: there is no more to do."""
        if not self._is_tried:
            self._is_tried = True
            seconds = self._programs.attach_pairs(self._rows)
            self._programs.use_pairs([row for row in self._rows if row.number in seconds])
            self._attached = seconds
        return False

    def close(self) -> None:
        """Waits until no program is being attached any more."""
        if self._thread:
            self._thread.join(MOST_SECONDS)
