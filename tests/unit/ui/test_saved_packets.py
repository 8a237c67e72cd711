# SPDX-License-Identifier: Apache-2.0
"""Saved packets: JSON lines as of -o json; no file is overwritten, and an incomplete one is removed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support import sample_packets as samples
from tests.support.sample_findings import FOUND, VALIDATOR
from tests.support.screens import feed_of
from tracer.errors import OutputNotWritten
from tracer.model.loss import Loss
from tracer.ui.node_results import NodeFinding
from tracer.ui.saved_packets import save, suggested_name


def test_packets_findings_and_losses(tmp_path: Path) -> None:
    target, feed = tmp_path / "a.jsonl", feed_of([])
    feed.lost(Loss("hook", 0, 17, "so"))
    sentence = save(str(target), list(reversed(samples.every())), [NodeFinding("", FOUND)], feed)
    lines = [json.loads(line) for line in target.read_text().splitlines()]
    for line in lines:
        VALIDATOR.validate(line)
    assert [line["type"] for line in lines] == ["run", *["packet"] * 6, "finding", "summary"]
    assert [line["number"] for line in lines[1:7]] == [1, 2, 3, 4, 5, 6], "in the order in which packets ended"
    assert lines[0]["options"] == "--port 30285" and lines[-1]["lost"] == 17 and lines[-1]["packets"] == 6
    assert sentence == f"6 packets and 1 finding are in {target}."


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    target = tmp_path / "a.jsonl"
    target.write_text("mine")
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "elsewhere")
    for path in (target, link):
        with pytest.raises(OutputNotWritten, match="exists already"):
            save(str(path), samples.every(), [], feed_of([]))
    assert target.read_text() == "mine" and not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("path", ["missing/a.jsonl", "."])
def test_a_place_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OutputNotWritten):
        save(path, samples.every(), [], feed_of([]))


def test_a_full_disk_and_leaving_remove_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "a.jsonl"
    with pytest.raises(OutputNotWritten, match="closed first"):
        save(str(target), samples.every(), [], feed_of([]), lambda: True)
    assert not target.exists()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tracer.ui.saved_lines.SavedLines.packet", full)
    with pytest.raises(OutputNotWritten, match="No space left"):
        save(str(target), samples.every(), [], feed_of([]))
    assert not target.exists()


def test_the_suggested_name_is_a_new_file_here() -> None:
    assert suggested_name().endswith(".jsonl") and "/" not in suggested_name()
