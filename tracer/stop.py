# SPDX-License-Identifier: Apache-2.0
"""How a run is asked to end: by Ctrl-C, SIGTERM, a terminal that is closed (SIGHUP), or by its caller."""

from __future__ import annotations

import math
import signal
import time
from types import FrameType

END_SECONDS = 5.0
"""How long a run that was asked to end goes on to explain what it has seen: on a busy node, a ring full of packets."""


class Stop:
    """asked: a run is to end when it has explained what it has seen. late: now, whatever is left."""

    def __init__(self) -> None:
        self._until = math.inf

    @property
    def asked(self) -> bool:
        return self._until < math.inf

    @property
    def late(self) -> bool:
        return time.monotonic() > self._until

    def ask(self) -> None:
        self._until = min(self._until, time.monotonic() + END_SECONDS)

    def hurry(self) -> None:
        self._until = 0.0


class Signals(Stop):
    """Ctrl-C, SIGTERM and SIGHUP end a run, twice: at once. They do not interrupt what it is doing.

    SIGHUP stays ignored where it was ignored from the start: nohup asks for that.
    """

    def __init__(self) -> None:
        super().__init__()
        ends = [signal.SIGINT, signal.SIGTERM]
        ends += [signal.SIGHUP] if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN else []
        self._before = {s: signal.signal(s, self._ask) or signal.SIG_DFL for s in ends}

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            self.hurry()
        else:
            self.ask()

    def restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
