# SPDX-License-Identifier: Apache-2.0
"""A short part of the fuzzer of hostile captures and objects: no traceback, no hang, no memory without end."""

from __future__ import annotations

import pytest

from tests.fuzz.__main__ import run


@pytest.mark.parametrize(("only", "cases"), [("files", 120), ("objects", 400)])
def test_hostile(only: str, cases: int) -> None:
    found = run(0, cases, 0, seed=2, workers=1, only=only)
    assert +found == {"cases": cases}
