# SPDX-License-Identifier: Apache-2.0
"""The command `top`: its options, captures as one interval, and that a live run gets its view."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support import captures
from tracer.analysis.top.dimensions import DIMENSIONS
from tracer.analysis.top.orders import ORDERS
from tracer.analysis.top.packet_counter import TopOutput
from tracer.cli import live_table as options
from tracer.events.record import NOTHING


@pytest.fixture
def capture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Ten packets that are delivered and ten that a rule drops; 17 events were lost."""
    monkeypatch.setattr("tracer.pipeline.live_source.POLL_SECONDS", 0.001)
    return captures.capture(tmp_path / "a.k8st", captures.some_batches(20)).path


def test_the_words_of_the_options_are_those_of_the_table() -> None:
    assert list(options.DIMENSIONS) == list(DIMENSIONS) and list(options.ORDERS) == list(ORDERS)


@pytest.mark.parametrize("by", list(DIMENSIONS))
def test_a_capture_is_one_interval(run: Any, capture: Path, by: str) -> None:
    status, out, _ = run("top", "-r", capture, "--by", by, "-o", "json")
    (line,) = map(json.loads, out.splitlines())
    assert status == 0 and line["by"] == by and line["lost"]["events"] == 17 and line["lost_by_probe"] == {"table": 17}
    total = line["total"]
    assert sum(row["packets"] for row in [*line["rows"], *([line["other"]] if "other" in line else [])]) == total["packets"]
    assert total["packets"] == 20 and total["drops"] == 10 and sum(total["syns"]["causes"].values()) == 20


def test_figures_of_a_capture(run: Any, capture: Path) -> None:
    (line,) = map(json.loads, run("top", "-r", capture, "--by", "reason", "-o", "json")[1].splitlines())
    assert {row["key"]: row["packets"] for row in line["rows"]} == {"not dropped": 10, "DROP in filter/INPUT": 10}
    (line,) = map(json.loads, run("top", "-r", capture, "--drops-only", "--rows", "1", "-o", "json")[1].splitlines())
    assert line["total"]["packets"] == line["total"]["drops"] == 10 and len(line["rows"]) == 1


def test_two_replays_print_the_same(run: Any, capture: Path) -> None:
    one, other = (run("top", "-r", capture, "--by", "rule", "--sort", "drops")[1] for _ in range(2))
    assert one == other and "filter INPUT 1" in one and "missing: 17 events lost, by probe table 17" in one


def test_an_empty_capture(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tracer.pipeline.live_source.POLL_SECONDS", 0.001)
    empty = captures.capture(tmp_path / "a.k8st", [(NOTHING, [])]).path
    status, out, _ = run("top", "-r", empty)
    assert status == 0 and "0 packets" in out and "nothing" in out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--by", "colour"], "'colour' is not one of"),
        (["--interval", "0"], "0.0 is not in the range x>=0.1"),
        (["-r", "x.k8st", "--once"], "cannot be combined with --once"),
        (["--ring", "10M"], "need -w FILE"),
        (["--follow"], "No such option"),
    ],
)
def test_wrong_options_are_one_sentence(run: Any, words: list[str], sentence: str) -> None:
    status, out, err = run("top", *words)
    assert status == 2 and out == "" and sentence in err and err.count("\n") == 1


def test_a_live_run_gets_the_view_and_the_options_of_trace(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []

    def trace(cmd: Any, **arguments: Any) -> int:
        with arguments["view"] as output:
            given.append((cmd, arguments, output))
        return 12

    monkeypatch.setattr("tracer.commands.trace.trace", trace)
    status, *_ = run("top", "--port", "80", "--once", "--interval", "5", "-w", "a.k8st", "--", "true")
    ((cmd, arguments, output),) = given
    assert status == 12 and cmd == ("true",) and isinstance(output, TopOutput)
    assert (arguments["ports"], arguments["duration"], arguments["target"]) == (("80",), 5.0, "a.k8st")
    assert arguments["end_seconds"] < 1 and arguments["count"] == 0, "Ctrl-C is answered within a second"
