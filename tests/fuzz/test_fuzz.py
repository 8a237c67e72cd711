# SPDX-License-Identifier: Apache-2.0
"""A short run of the fuzzer of hostile captures and objects: no traceback, no hang, no unlimited memory."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.fuzz import cases as fuzz_cases
from tests.fuzz.cases import run
from tests.support.waiting import until


@pytest.mark.parametrize(("only", "cases"), [("files", 120), ("objects", 400)])
def test_hostile_input_does_no_harm(only: str, cases: int) -> None:
    found = run(0, cases, 0, seed=2, workers=1, only=only)
    assert +found == {"cases": cases}


def test_a_worker_that_waits_is_idle() -> None:
    with subprocess.Popen(["sleep", "300"]) as waiting:
        clock = fuzz_cases.Clock(waiting.pid)
        until(lambda: clock.idle() > 1, pause=0.1)
        waiting.kill()


def test_a_worker_that_computes_is_not_idle() -> None:
    clock = fuzz_cases.Clock(os.getpid())
    began = time.process_time()
    while time.process_time() - began < 0.5:
        clock.idle()
    assert clock.idle() < 0.5


def test_the_command_reports_its_cases() -> None:
    """The command's workers are separate processes, and cannot use what only the command's module defines."""
    command = [sys.executable, "-m", "tests.fuzz", "--cases", "20", "--only", "objects", "--workers", "1"]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "cases=20 crashes=0 hangs=0 too-large=0"), done.stderr
