# SPDX-License-Identifier: Apache-2.0
"""Waiting in tests: until a condition holds, with a limit for busy machines; never for a fixed time."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE = 60.0
"""Limit of each wait, s: a machine can be busy with other work."""


def until(
    true: Callable[[], object], missed: Callable[[], str] | None = None, pause: float = 0.005, patience: float = PATIENCE
) -> None:
    """Returns when true() is true; AssertionError after patience, s. missed: makes its message. pause: s between two checks."""
    end = time.monotonic() + patience
    while not true():
        assert time.monotonic() < end, missed() if missed else "the expected condition did not become true"
        time.sleep(pause)
