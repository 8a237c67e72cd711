# SPDX-License-Identifier: Apache-2.0
"""Options that change what is written do not change what is found. `make options` runs all of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import incidents
from scenes import scene
from tests.kernel import option_runs
from tests.kernel.recorder import Recorder
from tests.kernel.watching import Watch

RUNS = [
    (2, "stuck", "drops-only"),
    (5, "anywhere", "drops-only"),
    pytest.param(2, "stuck", "drops-only record", marks=pytest.mark.thorough),
    pytest.param(3, "stale", "drops-only follow", marks=pytest.mark.thorough),
]
BY_NAME = {options.name: options for options in option_runs.OPTIONS}


@pytest.fixture(scope="module", autouse=True)
def restored_scene(watch: Watch) -> Iterator[None]:
    """Restores the scene that other tests expect, after the last incident."""
    yield
    incidents.down()
    scene.up()


@pytest.mark.parametrize(("number", "state", "options"), RUNS)
def test_the_finding_is_there(watch: Watch, recorder: Recorder, number: int, state: str, options: str) -> None:
    case = option_runs.incident_case(incidents.find(number), state, "legacy")
    result = option_runs.run(recorder, case, BY_NAME[options])
    watch.lost += result.summary.lost
    print(result.line, result.text, sep="\n")
    assert not result.wrong, result.wrong
