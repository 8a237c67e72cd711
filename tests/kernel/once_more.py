# SPDX-License-Identifier: Apache-2.0
"""Runs kernel tests, and those that failed once more by themselves.

A kernel that is emulated on a busy machine is slow in ways no kernel is: a second passes between two lines of a test, and a
time-out of the scene comes true. A test that fails twice has failed. One that fails once is said, in the last line, for
it may be a race of the tracer's: it is to be looked at, but the other tests stay worth something.

python3 tests/kernel/once_more.py [--matrix FILE] [options of pytest] tests/kernel     (as root, in a machine of the lab)

With --matrix, what came of the tests of the kernel matrix is in FILE, for docs/matrix.md (tests/support/matrix_table.py).
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).resolve().parent.parent.parent)]

from tests.kernel.matrix import Matrix  # noqa: E402


class Failed:
    """A plugin of pytest that keeps the names of the tests that failed, in order."""

    def __init__(self) -> None:
        self.tests: dict[str, None] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.tests[report.nodeid] = None


def run(where: list[str], options: list[str], matrix: Matrix) -> tuple[int, list[str]]:
    """Exit status of pytest, and the tests that failed."""
    failed = Failed()
    return int(pytest.main([*options, *where], plugins=[failed, matrix])), list(failed.tests)


def twice(where: str, options: list[str], matrix: Matrix) -> int:
    """0 when every test passed, at the first or at the second try."""
    status, failed = run([where], options, matrix)
    if status != pytest.ExitCode.TESTS_FAILED:
        return status
    print(f"\n--- once more: {len(failed)}", flush=True)
    matrix.once_more()
    status, still = run(failed, options, matrix)
    if status in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        print(f"failed={len(still)} passed_at_the_second_try={' '.join(t for t in failed if t not in still) or 'none'}")
    return status


def main(arguments: list[str]) -> int:
    """As twice; the outcome is written however the tests end."""
    out = Path(arguments[1]) if arguments[0] == "--matrix" else None
    *options, where = arguments[2:] if out else arguments
    matrix = Matrix()
    try:
        return twice(where, options, matrix)
    finally:
        if out:
            matrix.write(out)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
