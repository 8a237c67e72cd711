# SPDX-License-Identifier: Apache-2.0
"""The points at which a start is killed: each names a function that exists."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest

from tests.kernel.kill_points import EARLY, POINTS, Point

OWN = {name: point for name, point in (POINTS | EARLY).items() if point.module != "bcc"}
"""Those of the tracer and of Python. bcc need not be installed here."""


@pytest.mark.parametrize("point", OWN.values(), ids=list(OWN))
def test_a_point_is_a_function(point: Point) -> None:
    found: Any = import_module(point.module)
    for name in point.function.split("."):
        found = getattr(found, name)
    assert callable(found)


def test_most_points_are_checked() -> None:
    assert len(OWN) > 12
