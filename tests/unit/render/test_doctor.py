# SPDX-License-Identifier: Apache-2.0
"""The summary of doctor: short, with each result that is not "ok", what it costs and what to do."""

from __future__ import annotations

import io
import re

import pytest

from tests.support.terminal import Terminal
from tracer.kernel.probes import PROBES
from tracer.model.check import CheckResult
from tracer.render import _doctor
from tracer.render.text import TextOutput

WORKING = [CheckResult("kernel", "ok", "6.12"), *(CheckResult(f"probe {each.name}", "ok", each.shows) for each in PROBES)]


def with_results(*changed: CheckResult) -> list[CheckResult]:
    """The results of a machine where all works but these."""
    subjects = [each.subject for each in changed]
    return [*(each for each in WORKING if each.subject not in subjects), *changed]


def summary(results: list[CheckResult], status: int) -> list[str]:
    TextOutput(out := io.StringIO(), io.StringIO()).doctor(results, status)
    return out.getvalue().splitlines()


def test_each_probe_has_one_topic() -> None:
    named = [name for names in _doctor.TOPICS.values() for name in names]
    assert sorted(named) == sorted(each.name for each in PROBES)


def test_a_machine_where_all_works() -> None:
    shown, end = summary(WORKING, 0)
    assert shown == f"+ shown  {', '.join(_doctor.TOPICS)}"
    assert end == f"Tracing works here.  {len(WORKING)} checks; -v lists them."


def test_what_is_not_used_here_is_not_said_to_be_shown() -> None:
    unused = [CheckResult(f"probe {name}", "ok", "not needed: module ip_vs is not loaded") for name in _doctor.TOPICS["IPVS"]]
    shown, _ = summary(with_results(*unused), 0)
    assert "IPVS" not in shown and "NAT" in shown


def test_probes_that_lack_for_one_reason_are_one_line() -> None:
    why = "its function is not there"
    lacking = [
        CheckResult(f"probe {name}", "missing", f"{why}; not shown: the choice of {name}", 1)
        for name in ("ipvs_in", "ipvs_nat4")
    ]
    other = CheckResult("probe confirm", "missing", "another reason; not shown: lost races", 1)
    shown, *lines, end = summary(with_results(*lacking, other), 1)
    assert "IPVS" not in shown and "conntrack" not in shown and "drops" in shown
    assert lines == [
        f"x IPVS       {why}; not shown: the choice of ipvs_in, the choice of ipvs_nat4",
        f"             To do: {_doctor.PROBE_ACTION}.",
        "x conntrack  another reason; not shown: lost races",
        f"             To do: {_doctor.PROBE_ACTION}.",
    ]
    assert end.startswith("Tracing works here, with limitations.")


@pytest.mark.parametrize("subject", list(_doctor.ACTIONS))
def test_what_to_do(subject: str) -> None:
    lines = summary(with_results(CheckResult(subject, "degraded", "so")), 1)
    assert lines[1].split() == ["!", *subject.split(), "so"] and lines[2].strip() == f"To do: {_doctor.ACTIONS[subject]}."


def test_what_makes_tracing_impossible_comes_first_and_nothing_is_said_to_be_shown() -> None:
    results = with_results(
        CheckResult("symbols", "degraded", "hidden", 1),
        CheckResult("bcc", "missing", "install it", 5),
        CheckResult("fentry", "degraded", "unknown without bcc"),
    )
    lines = summary(results, 5)
    assert [line.split()[1] for line in lines if line[0] in "+!x"] == ["bcc", "symbols"]
    assert lines[-1].startswith("Tracing cannot work here: bcc (exit status 5).")


def test_a_missing_needed_probe_keeps_its_text() -> None:
    needed = CheckResult("probe hook", "missing", "nf_hook_slow is not there; tracing is impossible without this probe", 6)
    lines = summary(with_results(needed), 6)
    assert lines[0] == f"x probe hook  {needed.text}" and len(lines) == 2


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_it_fits_a_terminal(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    out = Terminal()
    TextOutput(out, Terminal()).doctor(with_results(*(CheckResult(s, "degraded", "so " * 40) for s in _doctor.ACTIONS)), 1)
    text = re.sub(r"\x1b\[[0-9;]*m", "", out.getvalue())
    assert max(map(len, text.splitlines())) <= columns
