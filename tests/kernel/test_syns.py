# SPDX-License-Identifier: Apache-2.0
"""Causes of SYNs that are quick to make, with the kernel's counters and tcpdump; `make syns` runs all of them."""

from __future__ import annotations

import pytest

from tests.kernel import syn_runs
from tests.kernel.syn_scenes import SCENES, Scene
from tests.kernel.watching import Watch

QUICK = (
    "answered", "listener that does not accept", "flood, cookies off", "flood, cookies on",
    "two clients behind one SNAT address", "one tuple for two connections", "conntrack's table full", "rp_filter",
    "blackhole route", "listener on another address", "reply by another path",
)  # fmt: skip

MATRIX = ("answered", "listener that does not accept", "flood, cookies on", "conntrack's table full", "reply by another path")
"""The scenes that run on every kernel of the matrix."""

pytestmark = pytest.mark.thorough


@pytest.mark.parametrize(
    "scene",
    [pytest.param(s, marks=[pytest.mark.matrix] if s.name in MATRIX else []) for s in SCENES if s.name in QUICK],
    ids=lambda s: s.name,
)
def test_cause(watch: Watch, scene: Scene) -> None:
    result = syn_runs.run(watch, scene)
    assert not result.errors, result.text
    assert result.causes[scene.cause] >= scene.least


def test_all_scenes_are_different() -> None:
    assert len({(s.port, s.side) for s in SCENES}) == len({s.name for s in SCENES}) == len(SCENES)
    assert set(QUICK) <= {s.name for s in SCENES}
