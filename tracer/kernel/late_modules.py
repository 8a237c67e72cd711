# SPDX-License-Identifier: Apache-2.0
"""Reports kernel modules that are loaded during a run: probes are attached only at the start, so the run misses them."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from pathlib import Path

from tracer.kernel.attach_plan import UnavailableProbe
from tracer.util.worker import Worker, user_warnings

PAUSE_SECONDS = 2.0
MODULES = Path("/sys/module")


class LateModules:
    """Warns once for each module of unavailable probes when it is loaded; a context manager.

    Args:
        refused: Rows that could not be attached.
        modules: Directory with an entry for each loaded module.
        pause: Interval between two checks, s.

    Attributes:
        missed: What is not shown, by the module that has not been loaded yet.
    """

    def __init__(self, refused: Iterable[UnavailableProbe], modules: Path = MODULES, pause: float = PAUSE_SECONDS) -> None:
        self._modules, self._pause, self._ended = modules, pause, threading.Event()
        self.missed: dict[str, list[str]] = {}
        for row in refused:
            if row.probe.module and row.why.endswith("is not loaded"):
                shows = self.missed.setdefault(row.probe.module, [])
                shows += [row.probe.shows] * (row.probe.shows not in shows)

    def __enter__(self) -> LateModules:
        if self.missed:
            Worker("kernel modules", self._look).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()

    def _look(self) -> bool:
        """Checks once, then waits. Returns False when there is nothing more to check."""
        for module in [m for m in self.missed if (self._modules / m).exists()]:
            missed = "; ".join(self.missed.pop(module))
            user_warnings.add(f"The kernel module {module} was loaded after this run began. Start again to see: {missed}.")
        return not self._ended.wait(self._pause) and bool(self.missed)
