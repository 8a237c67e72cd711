# SPDX-License-Identifier: Apache-2.0
"""Whether the agent is ready, and whether it is alive: what the probes of a kubelet ask."""

from __future__ import annotations

import time
from collections.abc import Callable

from tracer.util.worker import ThreadDeaths, thread_deaths

STALLED_SECONDS = 60.0
"""Time without a batch after which the agent counts as hanging, s. A batch needs milliseconds; one that explains a full ring
buffer on a busy node needs some seconds."""


class AgentHealth:
    """The state of one run. The thread of the run writes it, threads that answer requests read it.

    Args:
        deaths: The threads that died.
        now: The clock, s.

    Attributes:
        is_ready: The probes are attached, and packets are counted.
    """

    def __init__(self, deaths: ThreadDeaths = thread_deaths, now: Callable[[], float] = time.monotonic) -> None:
        self._deaths, self._now = deaths, now
        self._last_batch = 0.0
        self.is_ready = False

    def begin(self) -> None:
        """The probes are attached."""
        self._last_batch, self.is_ready = self._now(), True

    def end_batch(self) -> None:
        """A batch was read and explained."""
        self._last_batch = self._now()

    def end(self) -> None:
        """The run ends."""
        self.is_ready = False

    @property
    def problem(self) -> str:
        """Why the agent does not work any more, one sentence; "" = it works. A start or an end may take long."""
        dead = self._deaths.names()
        if dead:
            return f"These threads have ended by an error: {', '.join(dead)}."
        since = self._now() - self._last_batch
        return f"No batch of events was read for {since:.0f} s." if self.is_ready and since > STALLED_SECONDS else ""
