# SPDX-License-Identifier: Apache-2.0
"""A plugin of pytest that keeps what came of the tests of the kernel matrix on this kernel, for docs/matrix.md."""

from __future__ import annotations

import importlib.metadata
import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path

import pytest

from tracer.kernel.bcc_program import load_bcc


@dataclass
class Outcome:
    """One kernel's.

    seconds: what these tests took, with what they set up. tests: [passed, failed, skipped] by what the file is about. failed:
    names. again: names of those that failed once and passed when they were run once more. skipped: what, and why. facts, told:
    what tests recorded.
    """

    kernel: str
    release: str
    bcc: str
    numpy: str
    seconds: float = 0.0
    tests: dict[str, list[int]] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)
    again: list[str] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    facts: dict[str, object] = field(default_factory=dict)
    told: dict[str, dict[str, str]] = field(default_factory=dict)


class Matrix:
    """Tests that have the mark `matrix` count, whatever others are run beside them."""

    def __init__(self) -> None:
        release = os.uname().release
        kernel = os.environ.get("LAB_KERNEL", release)
        self.outcome = Outcome(kernel, release, load_bcc().__version__, importlib.metadata.version("numpy"))
        self._about: dict[str, str] = {}
        self._before: set[str] = set()

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            if item.get_closest_marker("matrix"):
                module = item.getparent(pytest.Module)
                text = module.obj.__doc__ if module else ""
                self._about[item.nodeid] = text.split("\n\n")[0].split(":")[0].replace("\n", " ").rstrip(".")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        about = self._about.get(report.nodeid)
        if not about:
            return
        self.outcome.seconds += report.duration
        if report.when != "call" and report.passed:
            return
        counts = self.outcome.tests.setdefault(about, [0, 0, 0])
        counts[("passed", "failed", "skipped").index(report.outcome)] += 1
        if report.failed:
            self.outcome.failed.append(report.nodeid)
        elif report.nodeid in self._before:
            self.outcome.again.append(report.nodeid)
        if report.skipped and isinstance(report.longrepr, tuple):
            self.outcome.skipped[about] = report.longrepr[2].removeprefix("Skipped: ")
        for name, value in report.user_properties:
            if isinstance(value, tuple):
                self.outcome.told[value[0]] = value[1]
            else:
                self.outcome.facts[name] = value

    def once_more(self) -> None:
        """The tests that failed no longer count: they are run once more."""
        self._before, self.outcome.failed = set(self.outcome.failed), []
        for test in self._before:
            counts = self.outcome.tests[self._about[test]]
            counts[1] = max(0, counts[1] - 1)

    def write(self, out: Path) -> None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(asdict(self.outcome), indent=1))
