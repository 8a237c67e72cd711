# SPDX-License-Identifier: Apache-2.0
"""The JSON output format: one object per line, each with a `type`. schema.json in this directory is the contract.

A key that does not apply is absent, never null. All hops are written, also those that the text format omits.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TextIO

from tracer import __version__
from tracer.model.check import CheckResult
from tracer.model.finding import Finding
from tracer.model.handshake import HandshakeVerdict
from tracer.model.joined_packet import JoinedPacket, JoinLink, NodeView
from tracer.model.packet import Packet
from tracer.model.summary import OutputLoss, RunSummary
from tracer.model.time_form import TimeForm
from tracer.model.timeline import Timeline, TimelineEntry
from tracer.packets.shared_packet import SharedPacket
from tracer.packets.shared_path import shared_hops
from tracer.render.base import LostEvents, Output
from tracer.render.parts.json_packet import Object, endpoints, packet_object, rfc3339
from tracer.render.parts.json_template import JsonTemplates, packet_line
from tracer.util.escape import json_line

_WIRE_VALUES = ("time", "number", "seq", "length", "ip_id")

if TYPE_CHECKING:
    from tracer.model.prediction import PredictedPath
    from tracer.model.prediction_check import PredictionCheck


class JsonOutput(Output):
    """Writes everything except notes to `out`."""

    shows_all_results = True

    def __init__(
        self,
        out: TextIO | None = None,
        err: TextIO | None = None,
        verbose: bool = False,
        times: TimeForm = TimeForm.LOCAL,
    ) -> None:
        super().__init__(out, err, verbose, times)
        self._templates = JsonTemplates()

    def begin(self, results: Sequence[CheckResult], options_text: str, release: str = "") -> None:
        kernel = release or os.uname().release
        self._write("run", version=__version__, kernel=kernel, options=options_text, facts=[_result(f) for f in results])

    def packet(self, packet: Packet) -> None:
        hops = shared_hops(packet)
        self.put_escaped(self._templates.line(packet, hops) if hops else packet_line(packet))

    def repeat(self, packet: SharedPacket) -> None:
        self.put_escaped(self._templates.shared_line(packet))

    def joined(self, joined: JoinedPacket) -> None:
        self._write("joined", **_joined(joined))

    def lost(self, loss: LostEvents) -> None:
        super().lost(loss)
        self._write("lost", probe=loss.probe, cpu=loss.cpu, count=loss.count, why=loss.why)

    def finding(self, finding: Finding) -> None:
        self._write("finding", **finding_object(finding))

    def syn(self, verdict: HandshakeVerdict) -> None:
        self._write("syn", **_syn(verdict))

    def timeline(self, timeline: Timeline) -> None:
        self._write("timeline", **_timeline(timeline))

    def summary(self, summary: RunSummary) -> None:
        self._write(
            "summary",
            packets=summary.packets,
            outcomes=summary.outcomes,
            incomplete=summary.incomplete,
            events=summary.events,
            lost=summary.lost,
            lost_by_probe=dict(self.lost_by_probe),
            seconds=round(summary.seconds, 3),
            findings=[finding_object(f) for f in summary.findings],
            causes=summary.causes,
            counters=[
                {"netns": d.netns, "counter": d.counter, "counted": d.counted, "explained": d.explained}
                for d in summary.differences
            ],
            **({"not_written": [_loss(loss) for loss in summary.not_written]} if summary.not_written else {}),
            **({"drops_without_finding": summary.drops_without_finding} if summary.drops_without_finding else {}),
            **({"unexplained": summary.unexplained} if summary.unexplained else {}),
            **({"unaddressed": summary.unaddressed} if summary.unaddressed else {}),
            **({"joined": summary.joined} if summary.joined else {}),
        )

    def node_summary(self, summary: RunSummary) -> None:
        self.summary(summary)

    def doctor(self, results: Sequence[CheckResult], status: int) -> None:
        self._write("doctor", facts=[_result(f) for f in results], status=status)

    def audit(
        self,
        findings: Sequence[Finding],
        checks: Sequence[str],
        unread: Sequence[str],
        status: int,
        limits: Sequence[tuple[str, str]] = (),
    ) -> None:
        for finding in findings:
            self.finding(finding)
        limited = [{"check": name, "why": why} for name, why in limits]
        self._write("audit", checks=list(checks), findings=len(findings), unread=list(unread), limited=limited, status=status)

    def explained(self, predicted_paths: Sequence[PredictedPath]) -> None:
        for predicted in predicted_paths:
            more = {"notes": list(predicted.notes)} if predicted.notes else {}
            self._write(
                "explained",
                share=float(predicted.share),
                doubts=list(predicted.conditions),
                packet=_untimed(predicted.packet),
                **more,
            )

    def compared(self, packet: Packet, compared: PredictionCheck) -> None:
        difference = {"difference": compared.difference} if compared.difference else {}
        self._write("compared", agreed=compared.agreed, packet=packet_object(packet), **difference)

    def _marked(self, line: str) -> str:
        return f'{{"node":{json_line(self.node)},{line[1:]}' if self.node else line

    def _write(self, kind: str, **fields: Any) -> None:
        self.put_escaped(json_line({"type": kind, **fields}))


def _untimed(packet: Packet) -> Object:
    """Returns the object of a predicted packet, without the values that only a packet on the wire has."""
    return {key: value for key, value in packet_object(packet).items() if key not in _WIRE_VALUES}


def _joined(joined: JoinedPacket) -> Object:
    return {
        "views": [_view(view) for view in joined.views],
        "links": [_link(link) for link in joined.links],
        "complete": joined.complete,
    }


def _view(view: NodeView) -> Object:
    out: Object = {"node": view.node}
    if view.offset is not None:
        out["offset_ns"], out["offset_error_ns"] = view.offset, view.error
    return out | {"packet": packet_object(view.packet)}


def _link(link: JoinLink) -> Object:
    out: Object = {"key": link.key.value, "certainty": link.certainty.value, "candidates": link.candidates}
    for key, value in (("earlier", link.earlier), ("later", link.later), ("delay_ns", link.delay)):
        if value is not None:
            out[key] = value
    return out | {"delay_error_ns": link.error} if link.delay is not None else out


def finding_object(finding: Finding) -> Object:
    """Returns the fields of a `finding` line, without its type."""
    proofs = [{"what": p.what, "text": p.text, "evidence": p.evidence} for p in finding.proofs]
    times = {"first": rfc3339(finding.first), "last": rfc3339(finding.last)} if finding.packets else {}
    return {
        "name": finding.name,
        "text": finding.cause,
        "certain": finding.certain,
        "proofs": proofs,
        "check": finding.check,
        "cure": finding.cure,
        "count": finding.packets,
        "packets": list(finding.numbers),
        **times,
    }


def _syn(verdict: HandshakeVerdict) -> Object:
    cause = verdict.cause
    out: Object = {
        "number": verdict.number,
        "time": rfc3339(verdict.time),
        "netns": verdict.netns,
        "asked": endpoints(verdict.asked),
        "reached": endpoints(verdict.reached),
        "cause": cause.name,
        "text": cause.text,
        "evidence": cause.evidence.value,
        "good": cause.good,
    }
    if verdict.again:
        out["again"] = verdict.again
    if verdict.after:
        out["after_ns"] = verdict.after
    if verdict.attempt:
        out["packet"] = verdict.attempt.syn.number
    return out


def _timeline(timeline: Timeline) -> Object:
    identity = timeline.key
    out: Object = {
        "time": rfc3339(timeline.began),
        "proto": identity.protocol.lower(),
        "orig": endpoints(identity.orig),
        "zone": identity.zone,
        "state": timeline.state,
        "packets": timeline.packets,
        "left_out": timeline.left_out,
        "steps": [_step(step, timeline.origin) for step in timeline.entries],
    }
    if identity.netns:
        out["netns"] = identity.netns
    for key, value in (
        ("why", timeline.why),
        ("cause", timeline.cause),
        ("again", timeline.retransmitted),
        ("lost", timeline.lost),
    ):
        if value:
            out[key] = value
    return out


def _step(entry: TimelineEntry, origin: int) -> Object:
    out: Object = {"time_ns": entry.time - origin, "what": entry.kind, "text": entry.text}
    for key, value in (("way", entry.direction), ("end", entry.end), ("remark", entry.remark), ("packet", entry.number)):
        if value:
            out[key] = value
    if entry.stages:
        out["stages"] = [{"time_ns": s.time, "netns": s.netns, "text": s.text} for s in entry.stages]
    return out


def _loss(loss: OutputLoss) -> Object:
    return {"output": loss.output, "records": loss.records, "why": loss.why}


def _result(result: CheckResult) -> Object:
    return {"subject": result.subject, "state": result.state, "text": result.text}


FORMAT = JsonOutput
