"""Goes through the tests of the kernel matrix on this kernel, and writes what came of them for docs/matrix.md.

python3 tests/kernel/matrix.py build/matrix/6.12.json [TEST]...        (as root, in a machine of the lab)

With TESTs, which had failed, only these are run, and the file then says what came of them now.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent.parent)]

from tracer.kernel.program import load_bcc  # noqa: E402


@dataclass
class Outcome:
    """One kernel's.

    tests: [passed, failed, skipped] by what the file is about. failed: names. again: names of those that failed once and passed
    when they were run once more (tests/kernel/once_more.py). skipped: what, and why. facts: what tests recorded.
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


class Report:
    """A plugin of pytest that fills an outcome."""

    def __init__(self, outcome: Outcome) -> None:
        self.outcome = outcome
        self._about: dict[str, str] = {}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            module = item.getparent(pytest.Module)
            text = module.obj.__doc__ if module else ""
            self._about[item.nodeid] = text.split("\n\n")[0].split(":")[0].replace("\n", " ").rstrip(".")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "call" and report.passed:
            return
        counts = self.outcome.tests.setdefault(self._about[report.nodeid], [0, 0, 0])
        counts[("passed", "failed", "skipped").index(report.outcome)] += 1
        if report.failed:
            self.outcome.failed.append(report.nodeid)
        if report.skipped and isinstance(report.longrepr, tuple):
            self.outcome.skipped[self._about[report.nodeid]] = report.longrepr[2].removeprefix("Skipped: ")
        for name, value in report.user_properties:
            if isinstance(value, tuple):
                self.outcome.told[value[0]] = value[1]
            else:
                self.outcome.facts[name] = value

    def forget(self) -> list[str]:
        """The tests that failed, which no longer count: they are run once more."""
        failed, self.outcome.failed = self.outcome.failed, []
        for test in failed:
            self.outcome.tests[self._about[test]][1] -= 1
        return list(dict.fromkeys(failed))

    def replaced(self, failed: list[str]) -> list[str]:
        """Of tests that had failed before, those that were not run now; the others no longer count as they did then."""
        for test in failed:
            if test in self._about:
                self.outcome.tests[self._about[test]][1] -= 1
        return [test for test in failed if test not in self._about]


def now() -> Outcome:
    """Of this kernel, before any test."""
    return Outcome(
        os.environ.get("LAB_KERNEL", os.uname().release), os.uname().release, load_bcc().__version__,
        importlib.metadata.version("numpy"),
    )  # fmt: skip


def main(out: Path, tests: list[str]) -> int:
    """0 when every test passed, at the first or at the second try."""
    outcome = Outcome(**json.loads(out.read_text())) if tests else now()
    before, outcome.failed = outcome.failed, []
    began = time.monotonic()
    options, report = ["-p", "no:cacheprovider", "-W", "ignore::DeprecationWarning:bcc", "-m", "matrix"], Report(outcome)
    status = pytest.main([*options, "--durations=15", *(tests or [str(HERE)])], plugins=[report])
    if status == pytest.ExitCode.TESTS_FAILED:
        failed = report.forget()
        print(f"\n--- once more: {len(failed)}", flush=True)
        status = pytest.main([*options, *failed], plugins=[report])
        outcome.again += [test for test in failed if test not in outcome.failed]
    outcome.failed += report.replaced(before)
    outcome.seconds += time.monotonic() - began
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(asdict(outcome), indent=1))
    return int(status)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
