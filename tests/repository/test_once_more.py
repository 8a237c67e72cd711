# SPDX-License-Identifier: Apache-2.0
"""The kernel tests after the death of their machine: the second machine continues, and nothing is lost."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ONCE_MORE = Path(__file__).resolve().parent.parent / "kernel" / "once_more.py"

TESTS = """'''Subjects of a kernel.'''
import os, pathlib, pytest
pytestmark = pytest.mark.matrix
HERE = pathlib.Path(__file__).parent

def runs(name):
    with (HERE / "runs").open("a") as file:
        print(name, file=file)
    return (HERE / "runs").read_text().split().count(name)

def test_first():
    runs("first")

def test_fails_once():
    assert runs("fails_once") > 1

def test_fails():
    runs("fails")
    assert not (HERE / "broken").exists()

def test_machine_dies():
    if runs("machine_dies") == 1:
        os._exit(125)

def test_last():
    runs("last")
"""


def run(directory: Path) -> tuple[int, str]:
    """Exit status and output of one machine."""
    out = directory / "results.json"
    done = subprocess.run(
        [sys.executable, ONCE_MORE, "--matrix", out, "-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir", directory,
         "-W", "ignore", directory / "test_machine.py"],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def results(directory: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((directory / "results.json").read_text())
    return found


def test_a_second_machine_continues_behind_the_tests_that_ended(tmp_path: Path) -> None:
    (tmp_path / "test_machine.py").write_text(TESTS)
    status, _ = run(tmp_path)
    assert status == 125
    assert not results(tmp_path)["ended"]
    status, output = run(tmp_path)
    assert status == 0, output
    assert "--- continued: the machine died during test_machine.py::test_machine_dies" in output
    runs = (tmp_path / "runs").read_text().split()
    assert {name: runs.count(name) for name in runs} == {
        "first": 1, "fails_once": 2, "fails": 1, "machine_dies": 2, "last": 1
    }  # fmt: skip
    found = results(tmp_path)
    assert found["ended"] and found["failed"] == {}
    assert found["again"] == ["test_machine.py::test_fails_once"]
    assert found["died_during"] == ["test_machine.py::test_machine_dies"]
    assert found["tests"] == {"Subjects of a kernel": [5, 0, 0]}


def test_a_test_that_fails_in_both_machines_has_failed(tmp_path: Path) -> None:
    (tmp_path / "test_machine.py").write_text(TESTS)
    (tmp_path / "broken").touch()
    run(tmp_path)
    status, output = run(tmp_path)
    assert status == 1
    assert "failed=1 passed_at_the_second_try=none" in output
    assert (tmp_path / "runs").read_text().split().count("fails") == 2
    assert list(results(tmp_path)["failed"]) == ["test_machine.py::test_fails"]
    assert results(tmp_path)["tests"] == {"Subjects of a kernel": [4, 1, 0]}
