# SPDX-License-Identifier: Apache-2.0
"""Waiting in tests: for what must come to be, as long as a busy machine may take; never for a length of time."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE = 60.0
"""Seconds that anything may take: a machine can be busy with other things."""


def until(true: Callable[[], object], missed: Callable[[], str] | None = None, pause: float = 0.005) -> None:
    """Returns once it is true. AssertionError when it does not become so; missed: says what. pause: seconds between looks."""
    end = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < end, missed() if missed else "it did not come to that"
        time.sleep(pause)
