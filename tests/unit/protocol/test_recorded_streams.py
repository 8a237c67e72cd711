# SPDX-License-Identifier: Apache-2.0
"""Recorded streams of older agents stay readable: tests/data/protocol/VERSION.stream, and the JSON output of each.

The agent of `version-1` does not send some fields, as if they had been added later: identity and family of a packet, mark of
some hops, evidence of an owner, numbers of a finding, drops without a finding of a summary, boot id of the hello.
"""

from __future__ import annotations

import json
import re
from io import StringIO
from pathlib import Path

import pytest

from tracer.cluster.cluster_run import ClusterRun, NodeCommand
from tracer.cluster.packet_stage import SingleViews
from tracer.pipeline.shutdown import StopRequest
from tracer.protocol.limits import VERSION
from tracer.render.json import JsonOutput

STREAMS = sorted((Path(__file__).resolve().parents[2] / "data" / "protocol").glob("*.stream"))


@pytest.mark.parametrize("path", STREAMS, ids=lambda path: path.stem)
def test_an_older_stream_is_read_as_it_was(path: Path) -> None:
    out, err = StringIO(), StringIO()
    run = ClusterRun([NodeCommand("node-1", ["cat", str(path)])], JsonOutput(out, err), SingleViews())
    totals = run.run(StopRequest())
    text = re.sub(r'"version":"[^"]*"', '"version":""', out.getvalue())
    assert text == path.with_suffix(".jsonl").read_text() and not totals.failed and totals.traced == ["node-1"]
    assert len([line for line in map(json.loads, text.splitlines()) if line["type"] == "packet"]) > 10
    assert "node-1: a note" in err.getvalue() and totals.summary.not_written[0].records == 2 and "sends more" in err.getvalue()


def test_there_is_a_stream_of_each_version() -> None:
    assert {f"version-{number}" for number in range(1, VERSION + 1)} <= {path.stem for path in STREAMS}
