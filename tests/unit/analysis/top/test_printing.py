# SPDX-License-Identifier: Apache-2.0
"""Printed tables fit their width, escape what others wrote, and show what is missing; JSON agrees with the schema."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from importlib import resources

import pytest
from jsonschema import Draft202012Validator

from tests.support import sample_packets as samples
from tests.unit.analysis.top.test_interval import verdict
from tracer import render
from tracer.analysis.durations import short_time
from tracer.analysis.top.columns import rate
from tracer.analysis.top.dimensions import DIMENSIONS
from tracer.analysis.top.interval import Interval, IntervalCounter, Losses, Measurement
from tracer.analysis.top.printing import PrintedRecords, PrintedTables
from tracer.model.kube import Owner
from tracer.model.loss import LEFT_OUT, Loss

VALIDATOR = Draft202012Validator(json.loads(resources.files(render).joinpath("schema.json").read_text(encoding="utf-8")))
HOSTILE = Owner("Service", "default", "a\x1b[31m[bold]\n" + "x" * 200)


def interval(dimension: str = "service") -> Interval:
    counter = IntervalCounter(dimension, Measurement())
    for packet in (*samples.every(), replace(samples.node_port(), dst_owner=HOSTILE)):
        counter.packet(packet)
        if packet.tcp_flags == "SYN":
            counter.syn(verdict(packet, "no answer", good=False))
    counter.lost(Loss(LEFT_OUT, -1, 12, "full"))
    counter.lost(Loss("table", 0, 3, "full"))
    return counter.close(2.0, Losses(events=1))


def printed(dimension: str, width: int, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("COLUMNS", str(width))
    out = io.StringIO()
    PrintedTables(dimension, "packets", 20, out).show(interval(dimension))
    return out.getvalue()


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("dimension", list(DIMENSIONS))
def test_a_table_fits_its_width(dimension: str, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = printed(dimension, width, monkeypatch).splitlines()
    assert max(map(len, lines)) <= width and all(line.isprintable() for line in lines)
    assert any(line.endswith("p99") for line in lines) and any(DIMENSIONS[dimension].title in line for line in lines)


def test_a_whole_capture_has_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    out = io.StringIO()
    counted = interval()
    PrintedTables("service", "packets", 20, out, counts=True).show(counted)
    titles = next(line.split() for line in out.getvalue().splitlines() if line.startswith("Service"))
    assert titles[:3] == ["Service", "packets", "drops"]
    row = next(line.split() for line in out.getvalue().splitlines() if line.startswith("unknown "))
    assert row[1:3] == [str(counted.rows["unknown"].packets), str(counted.rows["unknown"].drops)]


def test_a_wide_table_has_more_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    narrow, wide = (printed("rule", width, monkeypatch) for width in (80, 120))
    assert "owner" not in narrow and "owner" in wide and " path" not in narrow and " path" in wide


def test_names_from_outside_are_escaped_and_no_markup(monkeypatch: pytest.MonkeyPatch) -> None:
    text = printed("service", 120, monkeypatch)
    assert "\x1b" not in text and r"default/a\x1b[31m[bold]\n" in text


def test_what_is_missing_is_in_the_head(monkeypatch: pytest.MonkeyPatch) -> None:
    text = printed("client", 200, monkeypatch)
    assert re.search(
        r"^missing: 12 packets left out, 3 events lost, 1 incomplete packet, by probe table 3$", text, re.MULTILINE
    )
    assert re.search(r"^missing since the start: 12 packets left out, 4 events lost$", text, re.MULTILINE)


@pytest.mark.parametrize("dimension", list(DIMENSIONS))
def test_json_agrees_with_the_schema_and_with_the_table(dimension: str) -> None:
    out = io.StringIO()
    PrintedRecords(dimension, "packets", 2, out).show(interval(dimension))
    (line,) = map(json.loads, out.getvalue().splitlines())
    VALIDATOR.validate(line)
    total, rows = line["total"], [*line["rows"], *([line["other"]] if "other" in line else [])]
    for figure in ("packets", "drops", "incomplete"):
        assert sum(row[figure] for row in rows) == total[figure]
    assert sum(row["syns"]["failed"] for row in rows) == total["syns"]["failed"] > 0


def test_an_interval_without_packets() -> None:
    empty = IntervalCounter("service", Measurement()).close(2.0, Losses())
    for printer in (PrintedTables, PrintedRecords):
        out = io.StringIO()
        printer("service", "packets", 20, out).show(empty)
        assert "nothing" in out.getvalue() or VALIDATOR.is_valid(json.loads(out.getvalue()))


def test_figures_are_short() -> None:
    assert [rate(n, 2.0) for n in (0, 1, 7, 30, 5000)] == ["0", "0.5", "3.5", "15.0", "2,500"]
    assert [short_time(us) for us in (0.5, 12.3, 999.6, 12_345, 250_000, 3e6)] == [
        "0.5us",
        "12us",
        "1.0ms",
        "12.3ms",
        "250ms",
        "3.0s",
    ]
