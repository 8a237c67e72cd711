# SPDX-License-Identifier: Apache-2.0
"""Looks for findings in packets. A packet that is not printed can give a finding, too."""

from __future__ import annotations

from tracer.findings import Findings
from tracer.model.packet import Packet
from tracer.model.summary import RunSummary
from tracer.packets.shared_packet import SharedPacket
from tracer.pipeline.stage import Stage
from tracer.render.base import Output


class FindingStage(Stage):
    """Writes each finding when it becomes certain. findings: those of the run; other stages may add to them."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings

    def feed(self, packet: Packet, output: Output) -> Packet:
        for finding in self._findings.look(packet, output.finding_again):
            output.finding(finding)
        return packet

    def repeat(self, packet: SharedPacket, output: Output) -> SharedPacket:
        if not self._findings.repeats_nothing(packet):
            self.feed(packet.packet(), output)
        return packet

    def flush(self, summary: RunSummary, output: Output) -> None:
        summary.findings, summary.drops_without_finding = self._findings.all, self._findings.drops_without
