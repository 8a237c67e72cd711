# SPDX-License-Identifier: Apache-2.0
"""Change events in a capture: a replay prints the same timelines as the live run."""

from __future__ import annotations

import json
import os
import re
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from tests.support import captures
from tests.support.ctnetlink import ADDED, REMOVED, REPLY, FakeConntrack, message
from tracer.capture.change_events import NOT_IN_CAPTURE, RecordedChangeLog, RecordedConntrackListener
from tracer.capture.format.schema import Record
from tracer.capture.record.buffer import RecordBuffer
from tracer.capture.replay.capture_reader import CaptureReader
from tracer.model.endpoints import Endpoints

MS = 1_000_000
ORIGINAL = Endpoints(*captures.CLIENT)
CREATED, GONE = message(*ADDED, orig=ORIGINAL, zone=0), message(*REMOVED, orig=ORIGINAL, zone=0, port=77)
WHY = "Conntrack's events cannot be read: so."
NAMES = {77: "conntrack (pid 77)"}


@pytest.fixture(autouse=True)
def no_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tracer.pipeline.live_source.POLL_SECONDS", 0.001)


def conntrack_of_a_connection() -> FakeConntrack:
    return FakeConntrack((1100, CREATED), (6 * MS, GONE), names=NAMES)


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_replay_prints_the_same_timelines(tmp_path: Path, run: Any, form: str) -> None:
    made = captures.capture(tmp_path / "a.k8st", form=form, follow=True, conntrack=conntrack_of_a_connection())
    mine = Path(f"/proc/{os.getpid()}/comm").read_text().strip()
    for line in (
        "created assured, SYN_SENT, 120 s",
        "removed by conntrack (pid 77)",
        f"{mine} replaced nat",
    ):
        assert line in made.text[form]
    assert run("-r", made.path, "-o", form) == (0, made.text[form], made.messages)


def test_a_replay_can_follow_connections_that_the_run_did_not_follow(tmp_path: Path, run: Any) -> None:
    live = captures.capture(tmp_path / "a.k8st", follow=True, conntrack=conntrack_of_a_connection())
    made = captures.capture(tmp_path / "b.k8st", conntrack=conntrack_of_a_connection())
    assert "created assured, SYN_SENT" not in made.text["text"] and "created assured, SYN_SENT" in live.text["text"]
    status, out, err = run("-r", made.path, "--follow")
    assert (status, err) == (0, live.messages)
    assert untimed(out) == untimed(live.text["text"])


def test_a_capture_recorded_without_explaining_has_conntrack_events(tmp_path: Path, run: Any) -> None:
    made = captures.capture(tmp_path / "a.k8st", explained=False, conntrack=conntrack_of_a_connection())
    out = json_lines(run("-r", made.path, "--follow", "-o", "json")[1])
    steps = [step["text"] for line in out if line["type"] == "timeline" for step in line["steps"]]
    assert "created assured, SYN_SENT, 120 s" in steps and "removed by conntrack (pid 77)" in steps


def untimed(text: str) -> str:
    """The text without the duration of the run."""
    return re.sub(r" in [\d.]+ s", "", text)


def json_lines(text: str) -> list[Any]:
    return [json.loads(line) for line in text.splitlines()]


def test_a_capture_without_conntrack_events_reports_that(tmp_path: Path, run: Any) -> None:
    made = captures.capture(tmp_path / "a.k8st")
    assert WHY not in made.messages, "the events were not requested"
    assert WHY in run("-r", made.path, "--follow")[2]


def test_only_events_of_the_requested_ports_are_kept() -> None:
    buffer = RecordBuffer()
    other = message(*ADDED, orig=Endpoints("10.0.0.1", 5000, "10.0.0.2", 53))
    kept = RecordedConntrackListener(buffer, FakeConntrack((1, CREATED), (2, other), (3, GONE), names=NAMES))
    assert kept.listen(False) == "", "also when this run does not print them"
    kept.ports = (ORIGINAL.dport,)
    assert kept.read() == [(1, CREATED), (3, GONE)] and kept.process(77) == NAMES[77]
    kept = RecordedConntrackListener(buffer, FakeConntrack((2, other)))
    kept.ports = (REPLY.sport,)
    assert kept.read() == [(2, other)], "before or after translation"


def test_changes_are_stored_when_they_are_read(tmp_path: Path) -> None:
    chunks: list[Any] = []
    buffer = RecordBuffer()
    buffer.start(chunks.append)
    changes = RecordedChangeLog(buffer)
    changes.add_rule_change(5, "nat")
    buffer.flush()
    assert not chunks, "the change has not been read"
    assert [step.text for step in changes.read()] == ["an unknown program replaced nat"]
    buffer.flush()
    stored = [(Record.CHANGE.value, [[5, "an unknown program replaced nat"]])]
    assert [(kind, body) for _, kind, _, body in chunks[0].records] == stored
    assert changes.read() == []


def test_an_older_capture_has_no_change_events(tmp_path: Path, run: Any) -> None:
    made = captures.capture(tmp_path / "a.k8st", conntrack=conntrack_of_a_connection())
    with sqlite3.connect(made.path) as connection:
        connection.execute("DELETE FROM records WHERE key LIKE 'conntrack events%' OR kind IN ('conntrack', 'change')")
    _, out, err = run("-r", made.path, "--follow")
    assert f"{NOT_IN_CAPTURE[0].upper()}{NOT_IN_CAPTURE[1:]}." in err and "created" not in out
    with CaptureReader(str(made.path)) as found:
        assert found.missed == 0
