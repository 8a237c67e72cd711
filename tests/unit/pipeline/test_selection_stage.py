# SPDX-License-Identifier: Apache-2.0
"""Conditions that user space evaluates: applied before packets are counted, live and when a capture is read."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from tests.support import captures
from tests.support.sample_packets import node_port
from tracer.capture.redact.records import RecordRedactor
from tracer.capture.replay import runner
from tracer.capture.replay.capture_reader import CaptureReader
from tracer.capture.replay.runner import ReplayRequest
from tracer.model.summary import RunSummary
from tracer.pipeline.selection_stage import SelectionStage
from tracer.pipeline.shutdown import StopRequest
from tracer.render.json import JsonOutput
from tracer.render.text import TextOutput
from tracer.selection.display_filter import DisplayFilter
from tracer.selection.filter_options import FilterOptions

ANSWERED, REFUSED = "tcp dst port 30285", "tcp dst port 8080"


def conditions(**options: Any) -> DisplayFilter:
    return FilterOptions(**options).live_filter()


def shown(text: str) -> list[dict[str, Any]]:
    return [line for line in map(json.loads, text.splitlines()) if line["type"] == "packet"]


def test_every_filter_must_select_a_packet() -> None:
    output, packet = TextOutput(io.StringIO(), io.StringIO()), node_port()
    both = SelectionStage([conditions(expression=ANSWERED), conditions(commands=("nginx",))])
    assert both.feed(packet, output) is packet and both.feed_unexplained(packet, output) is packet
    other = SelectionStage([conditions(expression=ANSWERED), conditions(commands=("httpd",))])
    assert other.feed(packet, output) is None and other.feed_unexplained(packet, output) is None


def test_undecided_packets_are_noted_at_the_end() -> None:
    err = io.StringIO()
    output, stage = TextOutput(io.StringIO(), err), SelectionStage([conditions(expression="ip[8] < 5"), DisplayFilter()])
    assert stage.feed(node_port(), output) is None
    stage.flush(RunSummary(), output)
    text = " ".join(err.getvalue().split())
    assert text == "1 packet is not shown: --filter 'ip[8] < 5' reads a part of it that was not recorded."


@pytest.mark.parametrize("selected", [conditions(expression=ANSWERED), conditions(excluded_ports=("40814-40900",))])
def test_a_capture_reads_as_its_run_printed(tmp_path: Path, selected: DisplayFilter) -> None:
    everything = captures.capture(tmp_path / "all.k8st", form="json")
    printed = captures.capture(tmp_path / "some.k8st", form="json", conditions=selected)
    packets = shown(printed.text["json"])
    assert 0 < len(packets) < len(shown(everything.text["json"]))
    assert printed.summary.packets == len(packets) and sum(printed.summary.outcomes.values()) == len(packets)
    totals, text = captures.read(tmp_path / "some.k8st")
    assert shown(text) == packets and totals.packets == len(packets)


def test_a_filter_chooses_from_a_capture_that_was_made_without_it(tmp_path: Path) -> None:
    captures.capture(tmp_path / "all.k8st")
    live = captures.capture(tmp_path / "some.k8st", form="json", conditions=conditions(expression=REFUSED))
    found = io.StringIO()
    request = ReplayRequest(FilterOptions(expression=REFUSED).capture_filter())
    with CaptureReader(str(tmp_path / "all.k8st")) as capture:
        totals = runner.replay(capture, JsonOutput(found, io.StringIO()), request, StopRequest())
    ends = [(p["src"], p["dst"]) for p in shown(found.getvalue())]
    assert ends and ends == [(p["src"], p["dst"]) for p in shown(live.text["json"])] and totals.packets == len(ends)


def test_a_redacted_capture_has_no_conditions(tmp_path: Path) -> None:
    selected = conditions(expression="host 192.168.56.1", commands=("secret-name",))
    captures.capture(tmp_path / "a.k8st", redacted=RecordRedactor(), conditions=selected)
    with CaptureReader(str(tmp_path / "a.k8st")) as capture:
        assert runner.options(capture)["conditions"] == {}
    assert b"secret-name" not in (tmp_path / "a.k8st").read_bytes()
