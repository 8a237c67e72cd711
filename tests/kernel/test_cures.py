# SPDX-License-Identifier: Apache-2.0
"""On this kernel every check shows what its finding states, and every cure helps: tests/kernel/all_cures.py in one process."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.kernel.conftest import ROOT


@pytest.mark.thorough
def test_checks_and_cures(node: None) -> None:
    command = [sys.executable, "-W", "ignore", "tests/kernel/all_cures.py", "--machine"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    print(done.stdout, done.stderr)
    assert done.returncode == 0 and " wrong=0 " in done.stdout.splitlines()[-1]
