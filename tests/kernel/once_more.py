# SPDX-License-Identifier: Apache-2.0
"""Runs kernel tests, and those that failed once more by themselves.

A kernel that is emulated on a busy machine is slow: a second passes between two lines of a test, and a time-out of the scene
ends. A test that fails twice has failed. A test that fails once is named in the last line: it may be a race of the tracer, so
it must be looked at, but the results of the other tests stay valid.

python3 tests/kernel/once_more.py [--matrix FILE] [options of pytest] tests/kernel     (as root, in a machine of the lab)

With --matrix, FILE has the results after each test, for docs/matrix.md (tests/support/matrix_table.py). If the machine dies,
a second one continues behind the tests that FILE has.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).resolve().parent.parent.parent)]

from tests.kernel.matrix import Matrix  # noqa: E402


def run(where: list[str], options: list[str], matrix: Matrix) -> int:
    """Exit status of pytest."""
    return int(pytest.main([*options, *where], plugins=[matrix]))


def twice(where: str, options: list[str], matrix: Matrix) -> int:
    """0 when every test passed, at the first or at the second try."""
    failed_before = set(matrix.outcome.failed_once)
    if matrix.is_continued:
        print(f"--- continued: the machine died during {matrix.outcome.died_during[-1]}", flush=True)
    status = run([where], options, matrix)
    if matrix.is_continued and status == pytest.ExitCode.NO_TESTS_COLLECTED:  # the machine died behind its last test
        return 0
    if status != pytest.ExitCode.TESTS_FAILED:
        return status
    failed = matrix.failed_tests()
    second_try = [test for test in failed if test not in failed_before]
    still = [test for test in failed if test in failed_before]
    if second_try:
        print(f"\n--- once more: {len(second_try)}", flush=True)
        matrix.discount(second_try)
        status = run(second_try, options, matrix)
        if status not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            return status
        still += matrix.failed_tests()
    print(f"failed={len(still)} passed_at_the_second_try={' '.join(t for t in failed if t not in still) or 'none'}")
    return int(pytest.ExitCode.TESTS_FAILED if still else pytest.ExitCode.OK)


def main(arguments: list[str]) -> int:
    """As twice. An exception leaves the results without an end."""
    out = Path(arguments[1]) if arguments[0] == "--matrix" else None
    *options, where = arguments[2:] if out else arguments
    matrix = Matrix(out)
    status = twice(where, options, matrix)
    matrix.end()
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
