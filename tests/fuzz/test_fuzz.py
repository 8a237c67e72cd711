# SPDX-License-Identifier: Apache-2.0
"""A short run of the fuzzer of hostile captures and objects: no traceback, no hang, no unlimited memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz.cases import run


@pytest.mark.parametrize(("only", "cases"), [("files", 120), ("objects", 400)])
def test_hostile_input_does_no_harm(only: str, cases: int) -> None:
    found = run(0, cases, 0, seed=2, workers=1, only=only)
    assert +found == {"cases": cases}


def test_the_command_reports_its_cases() -> None:
    """The command's workers are separate processes, and cannot use what only the command's module defines."""
    command = [sys.executable, "-m", "tests.fuzz", "--cases", "20", "--only", "objects", "--workers", "1"]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "cases=20 crashes=0 hangs=0 too-large=0"), done.stderr
