# SPDX-License-Identifier: Apache-2.0
"""Findings of a run ask for captures; the messages about these are notes."""

from __future__ import annotations

import io

from tests.support import sample_packets
from tracer.model.finding import Finding
from tracer.model.summary import RunSummary
from tracer.pipeline.capture_requests import CaptureRequests


class Recorder:
    """Replaces the flight recorder."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.said = ["The capture is a\x1b.k8st"]

    def request(self, finding: str) -> None:
        self.asked.append(finding)

    def messages(self) -> list[str]:
        said, self.said = self.said, []
        return said


def test_each_finding_asks_for_a_capture() -> None:
    recorder, err = Recorder(), io.StringIO()
    output = CaptureRequests(recorder, err)
    output.begin([], "")
    for packet in sample_packets.every():
        output.packet(packet)
    output.finding(Finding("mtu", (), "Too small.", (), "", ""))
    assert recorder.asked == ["mtu"] and not err.getvalue()
    output.end_batch(1)
    assert err.getvalue() == "The capture is a\\x1b.k8st\n"
    recorder.said = ["The last one."]
    output.summary(RunSummary())
    assert err.getvalue().endswith("The last one.\n")
