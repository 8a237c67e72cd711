# SPDX-License-Identifier: Apache-2.0
"""A plugin of pytest that keeps the results of the tests on this kernel: for docs/matrix.md, and for a machine that dies."""

from __future__ import annotations

import importlib.metadata
import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import pytest

from tracer.errors import NoBcc
from tracer.kernel.bcc_library import load_bcc


@dataclass
class Outcome:
    """The results of one kernel.

    Attributes:
        seconds: Duration of the matrix tests with their fixtures.
        tests: Matrix tests [passed, failed, skipped] by the subject of their file.
        failed: Matrix tests that failed, with the subject of their file.
        again: Names of matrix tests that failed once and passed at the second try.
        skipped: Why tests of a subject were skipped.
        facts: Values that tests recorded, by name.
        reported: What the tracer reports with each back end, by row of the table.
        finished: All tests, also those outside the matrix, that passed or were skipped.
        failed_once: All tests, also those outside the matrix, that failed at their first try.
        running: The test that runs now; after the death of the machine, the test during which it died.
        died_during: Each test during which a machine died.
        ended: All tests ran to their end.
    """

    kernel: str
    release: str
    bcc: str
    numpy: str
    seconds: float = 0.0
    tests: dict[str, list[int]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    again: list[str] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    facts: dict[str, object] = field(default_factory=dict)
    reported: dict[str, dict[str, str]] = field(default_factory=dict)
    finished: list[str] = field(default_factory=list)
    failed_once: list[str] = field(default_factory=list)
    running: str = ""
    died_during: list[str] = field(default_factory=list)
    ended: bool = False


class Matrix:
    """Counts the tests with the mark `matrix`; keeps the progress of all tests in a file.

    A file without an end was left by a machine that died. Its finished tests are not run again.

    Args:
        out: The file; None: nothing is kept.
    """

    def __init__(self, out: Path | None = None) -> None:
        self._out = out
        self._about: dict[str, str] = {}
        self._failed: list[str] = []
        """All tests that failed in this run of pytest, in order."""
        self._before: set[str] = set()
        unfinished = _unfinished(out)
        self.outcome = unfinished or _new_outcome()
        if unfinished:
            self.outcome.died_during.append(self.outcome.running or "no test")
        self._finished_before = set(self.outcome.finished)
        self.discount(list(self.outcome.failed))

    @property
    def is_continued(self) -> bool:
        """The results begin with those of a machine that died."""
        return bool(self.outcome.died_during)

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        for item in items:
            if item.get_closest_marker("matrix"):
                module = item.getparent(pytest.Module)
                text = module.obj.__doc__ if module else ""
                self._about[item.nodeid] = text.split("\n\n")[0].split(":")[0].replace("\n", " ").rstrip(".")
        finished = [item for item in items if item.nodeid in self._finished_before]
        if finished:
            config.hook.pytest_deselected(items=finished)
            items[:] = [item for item in items if item.nodeid not in self._finished_before]

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.outcome.running = nodeid
        self._write()

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self.outcome.running = ""
        if nodeid not in self._failed:
            self.outcome.finished.append(nodeid)
        elif nodeid not in self.outcome.failed_once:
            self.outcome.failed_once.append(nodeid)
        self._write()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and report.nodeid not in self._failed:
            self._failed.append(report.nodeid)
        about = self._about.get(report.nodeid)
        if not about:
            return
        self.outcome.seconds += report.duration
        if report.when != "call" and report.passed:
            return
        if report.nodeid in self.outcome.failed:  # its teardown failed, too
            return
        counts = self.outcome.tests.setdefault(about, [0, 0, 0])
        counts[("passed", "failed", "skipped").index(report.outcome)] += 1
        if report.failed:
            self.outcome.failed[report.nodeid] = about
        elif report.nodeid in self._before:
            self.outcome.again.append(report.nodeid)
        if report.skipped and isinstance(report.longrepr, tuple):
            self.outcome.skipped[about] = report.longrepr[2].removeprefix("Skipped: ")
        for name, value in report.user_properties:
            if isinstance(value, tuple):
                self.outcome.reported[value[0]] = value[1]
            else:
                self.outcome.facts[name] = value

    def failed_tests(self) -> list[str]:
        """All tests that failed since the last call, in order."""
        failed, self._failed = self._failed, []
        return failed

    def discount(self, tests: Iterable[str]) -> None:
        """Failures of these tests no longer count, for they are run once more."""
        for test in tests:
            about = self.outcome.failed.pop(test, None)
            if about:
                self.outcome.tests[about][1] -= 1
                self._before.add(test)

    def end(self) -> None:
        """All tests have ended."""
        self.outcome.ended = True
        self._write()

    def _write(self) -> None:
        """Replaces the file; a machine that dies meanwhile leaves the old one."""
        if self._out:
            self._out.parent.mkdir(parents=True, exist_ok=True)
            fresh = self._out.with_suffix(".tmp")
            fresh.write_text(json.dumps(asdict(self.outcome), indent=1))
            fresh.rename(self._out)


def _unfinished(out: Path | None) -> Outcome | None:
    """The results of a machine that died; None: there is no such file, or all its tests ended."""
    if out is None or not out.exists():
        return None
    found = Outcome(**json.loads(out.read_text()))
    return None if found.ended else found


def _new_outcome() -> Outcome:
    release = os.uname().release
    kernel = os.environ.get("LAB_KERNEL", release)
    return Outcome(kernel, release, _bcc_version(), importlib.metadata.version("numpy"))


def _bcc_version() -> str:
    try:
        return str(load_bcc().__version__)
    except NoBcc:
        return "not installed"
