# SPDX-License-Identifier: Apache-2.0
"""--quiet prints only what went wrong and counts all, in each format; --drops-only also counts only that."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support import captures
from tests.support import sample_packets as samples
from tracer.analysis.collector import PacketCollector
from tracer.model.packet import Packet
from tracer.model.summary import RunSummary
from tracer.packets.outcome import BAD
from tracer.pipeline.display_stage import DisplayStage


@pytest.fixture
def capture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Ten packets that are delivered, and ten that a rule drops."""
    monkeypatch.setattr("tracer.pipeline.live_source.POLL_SECONDS", 0.001)
    return captures.capture(tmp_path / "a.k8st", captures.some_batches(20)).path


@pytest.mark.parametrize(("drops_only", "quiet"), [(False, True), (True, False), (True, True)])
def test_only_failures_are_printed(drops_only: bool, quiet: bool) -> None:
    printed: list[Packet] = []
    summary, output = RunSummary(), PacketCollector(printed.append)
    stage = DisplayStage(summary, drops_only, quiet=quiet)
    every = samples.every()
    for packet in every:
        assert stage.feed(packet, output) is packet, "later stages get each packet"
    failed = [packet for packet in every if packet.outcome in BAD]
    assert printed == failed and len(failed) < len(every)
    assert summary.packets == (len(failed) if drops_only else len(every))
    stage.feed_unexplained(samples.node_port(), output)
    assert printed == failed


def test_quiet_json_has_the_same_records_and_fewer(run: Any, capture: Path) -> None:
    every, quiet = (run("-r", capture, "-o", "json", *words)[1].splitlines() for words in ((), ("-q",)))
    assert [line for line in every if line in set(quiet)] == quiet
    left_out = [json.loads(line) for line in every if line not in set(quiet)]
    assert left_out and all(line["type"] in ("packet", "syn") for line in left_out)
    assert all(line["outcome"] == "delivered" for line in left_out if line["type"] == "packet")
    assert not any(line.get("good") is False for line in left_out)
    assert json.loads(quiet[-1])["packets"] == 20, "the summary counts all packets"


@pytest.mark.parametrize("form", ["text", "oneline"])
def test_quiet_text_has_failures_findings_and_the_summary(run: Any, capture: Path, form: str) -> None:
    text = run("-r", capture, "-q", "-o", form)[1]
    assert "DROPPED in filter/INPUT" in text and "SYN answered by" not in text
    assert "20 packets in" in text and "finding" in text.lower() and "lost" in text
