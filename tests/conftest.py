"""What holds for all tests."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest

from tracer.render import _words


@pytest.fixture(autouse=True)
def same_time_zone() -> Iterator[None]:
    """Reading a capture shows the clock of its node; the next test has its own again."""
    before = os.environ.get("TZ")
    yield
    os.environ.pop("TZ", None)
    if before is not None:
        os.environ["TZ"] = before
    time.tzset()
    _words._second.cache_clear()
