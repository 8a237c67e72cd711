"""For programs: one JSON object a line, each with a `type`. schema.json beside this file is the contract.

A key that does not apply is absent, never null. Every hop is given, whatever the text format would show.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import asdict
from functools import lru_cache
from json import JSONEncoder
from typing import TYPE_CHECKING, Any

from tracer import __version__
from tracer.facts import Fact
from tracer.findings.model import Finding
from tracer.kube.model import UNKNOWN, Owner
from tracer.model import Drop, Endpoints, Flow, Handshake, Hop, Ipvs, Packet, Socket, Totals
from tracer.render.base import Lost, Output
from tracer.rules.model import Rule, Visit, Walk, path
from tracer.syns.model import Verdict
from tracer.timelines.model import Step, Timeline

if TYPE_CHECKING:
    from tracer.explain.compare import Compared
    from tracer.explain.journey import Story

Object = dict[str, Any]

_encode = JSONEncoder(separators=(",", ":")).encode


class Json(Output):
    """Everything on `out`, but for notes."""

    def begin(self, facts: Sequence[Fact], options_text: str, release: str = "") -> None:
        kernel = release or os.uname().release
        self._write("run", version=__version__, kernel=kernel, options=options_text, facts=[_fact(f) for f in facts])

    def packet(self, packet: Packet) -> None:
        self._write("packet", **packet_object(packet))

    def lost(self, loss: Lost) -> None:
        super().lost(loss)
        self._write("lost", probe=loss.probe, cpu=loss.cpu, count=loss.count, why=loss.why)

    def finding(self, finding: Finding) -> None:
        self._write("finding", **finding_object(finding))

    def syn(self, verdict: Verdict) -> None:
        self._write("syn", **_syn(verdict))

    def timeline(self, timeline: Timeline) -> None:
        self._write("timeline", **_timeline(timeline))

    def summary(self, totals: Totals) -> None:
        self._write(
            "summary",
            packets=totals.packets,
            outcomes=totals.outcomes,
            incomplete=totals.incomplete,
            events=totals.events,
            lost=totals.lost,
            lost_by_probe=dict(self.lost_by_probe),
            seconds=round(totals.seconds, 3),
            findings=[finding_object(f) for f in totals.findings],
            causes=totals.causes,
            counters=[
                {"netns": d.netns, "counter": d.counter, "counted": d.counted, "explained": d.explained}
                for d in totals.differences
            ],
        )

    def doctor(self, facts: Sequence[Fact], status: int) -> None:
        self._write("doctor", facts=[_fact(f) for f in facts], status=status)

    def audit(self, findings: Sequence[Finding], checks: Sequence[str], unread: Sequence[str], status: int) -> None:
        for finding in findings:
            self.finding(finding)
        self._write("audit", checks=list(checks), findings=len(findings), unread=list(unread), status=status)

    def explained(self, stories: Sequence[Story]) -> None:
        for story in stories:
            self._write("explained", share=float(story.share), doubts=list(story.doubts), packet=_untimed(story.packet))

    def compared(self, packet: Packet, compared: Compared) -> None:
        told = {"difference": compared.difference} if compared.difference else {}
        self._write("compared", agreed=compared.agreed, packet=packet_object(packet), **told)

    def _write(self, kind: str, **fields: Any) -> None:
        self.out.write(_encode({"type": kind, **fields}) + "\n")
        self.out.flush()


def packet_object(packet: Packet) -> Object:
    """The fields of a `packet` line, without its type."""
    began = packet.hops[0].time if packet.hops else 0
    out: Object = {
        "number": packet.number,
        "time": rfc3339(packet.time),
        "netns": packet.netns,
        "family": "ipv6" if ":" in packet.endpoints.src else "ipv4",
        "proto": packet.protocol.lower(),
        **_endpoints(packet.endpoints),
        "length": packet.length,
    }
    if packet.iface:
        out["ifname"] = packet.iface
    if packet.tcp_flags:
        out["tcp_flags"], out["seq"] = packet.tcp_flags, packet.seq
    if packet.flow:
        out["flow"] = _flow(packet.flow)
    ends = {"src": packet.src_owner, "dst": packet.dst_owner}
    known = {end: _owner(owner) for end, owner in ends.items() if owner and owner != UNKNOWN}
    if known:
        out["ends"] = known
    out["hops"] = [_hop(hop, began) for hop in packet.hops]
    out["verdict"], out["outcome"], out["complete"] = packet.verdict, packet.outcome, packet.complete
    if packet.continues:
        out["continues"] = rfc3339(packet.continues)
    if packet.drop:
        out["drop"] = _drop(packet.drop)
    if packet.handshake:
        out["syn"] = _handshake(packet.handshake)
    return out


def _untimed(packet: Packet) -> Object:
    """The same of a packet that nobody has sent: it has no time and no number."""
    return {key: value for key, value in packet_object(packet).items() if key not in ("time", "number", "seq", "length")}


def _hop(hop: Hop, began: int) -> Object:
    out: Object = {"time_ns": hop.time - began, "what": hop.what, "netns": hop.netns, "evidence": hop.evidence.value}
    for key, text in (
        ("hook", hop.hook),
        ("table", hop.table),
        ("chain", hop.chain),
        ("route" if hop.what == "route" else "verdict", hop.verdict),
        ("reject", hop.reject),
        ("in_ifname", hop.in_iface),
        ("out_ifname", hop.out_iface),
        ("mark", hop.mark),
        ("clone", hop.clone),
    ):
        if text:
            out[key] = text
    if hop.walk:
        out |= _walk(hop.walk)
    if hop.from_conntrack:
        out["from_conntrack"] = True
    if hop.nat:
        before, after = _endpoints(hop.nat.before), _endpoints(hop.nat.after)
        out["nat"] = {"kind": hop.nat.kind, "before": before, "after": after}
    if hop.ipvs:
        out["ipvs"] = _ipvs(hop.ipvs)
    if hop.handshake:
        out["handshake"] = _handshake(hop.handshake)
    if hop.socket:
        out["socket"] = _socket(hop.socket)
    if hop.drop:
        out["drop"] = _drop(hop.drop)
    if hop.clue:
        out["clue"] = {"what": hop.clue.what, **hop.clue.facts}
    if hop.owner:
        out["owner"] = _owner(hop.owner)
    return out


def _walk(walk: Walk) -> Object:
    """The rule that decided, and all that acted; or why that is not known."""
    out: Object = {}
    if walk.decision:
        out["chain_path"] = path(walk.decision.path)
        if walk.decision.rule:
            out["rule"] = _rule(walk.decision.rule)
    if walk.undecided:
        out["undecided"] = walk.undecided
    if walk.visits:
        out["acted"] = [_visit(v) for v in walk.visits]
    if walk.possible:
        out["possible"] = [_rule(r) for r in walk.possible]
    return out


def _visit(visit: Visit) -> Object:
    out: Object = {"chain_path": path(visit.path), "verdict": visit.verdict, "evidence": visit.evidence.value}
    if visit.rule:
        out["rule"] = _rule(visit.rule)
    if visit.element:
        out["element"] = visit.element
    return out


def _rule(rule: Rule) -> Object:
    out: Object = {"chain": rule.chain, "number": rule.number, "text": rule.text}
    for key, value in (("comment", rule.comment), ("target", rule.target), ("handle", rule.handle)):
        if value:
            out[key] = value
    return out


def _owner(owner: Owner) -> Object:
    """Its fields as they are called in the model, and the phrase that the text format shows."""
    return {key: text for key, text in asdict(owner).items() if text} | {"text": owner.text}


def _endpoints(ends: Endpoints) -> Object:
    if ends.sport or ends.dport:
        return {"src": ends.src, "sport": ends.sport, "dst": ends.dst, "dport": ends.dport}
    return {"src": ends.src, "dst": ends.dst}


def _flow(flow: Flow) -> Object:
    return {
        "orig": _endpoints(flow.orig),
        "reply": _endpoints(flow.reply),
        "ct_state": flow.state,
        "reply_direction": flow.is_reply,
        "zone": flow.zone,
    }


def _ipvs(told: Ipvs) -> Object:
    """What is known, by the model's names; how it is known where there was a choice."""
    out = {key: value for key, value in asdict(told).items() if value and key != "evidence"}
    return out | {"evidence": told.evidence.value} if told.chosen else out


def _handshake(shake: Handshake) -> Object:
    out: Object = {"stage": shake.stage}
    if shake.accepted is not None:
        out["accepted"] = shake.accepted
    queues = {"accept_queue": shake.accept_queue, "accept_limit": shake.accept_limit, "syn_queue": shake.syn_queue}
    return out | queues | ({"cookie": True} if shake.cookie else {})


def _socket(socket: Socket) -> Object:
    out: Object = {}
    if socket.state:
        out["state"] = socket.state
    if socket.inode:
        out["inode"] = socket.inode
    if socket.pid:
        out["pid"], out["command"] = socket.pid, socket.command
    return out


def _drop(drop: Drop) -> Object:
    return {key: text for key, text in (("reason", drop.reason), ("function", drop.function)) if text}


def finding_object(finding: Finding) -> Object:
    """The fields of a `finding` line, without its type."""
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


def _syn(verdict: Verdict) -> Object:
    cause = verdict.cause
    out: Object = {
        "number": verdict.number,
        "time": rfc3339(verdict.time),
        "netns": verdict.netns,
        "asked": _endpoints(verdict.asked),
        "reached": _endpoints(verdict.reached),
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
    identity = timeline.identity
    out: Object = {
        "time": rfc3339(timeline.began),
        "proto": identity.protocol.lower(),
        "orig": _endpoints(identity.orig),
        "zone": identity.zone,
        "state": timeline.state,
        "packets": timeline.packets,
        "left_out": timeline.left_out,
        "steps": [_step(step, timeline.origin) for step in timeline.steps[timeline.told :]],
    }
    if identity.netns:
        out["netns"] = identity.netns
    if timeline.why:
        out["why"] = timeline.why
    return out


def _step(step: Step, origin: int) -> Object:
    out: Object = {"time_ns": step.time - origin, "what": step.kind, "text": step.text}
    for key, value in (("way", step.way), ("end", step.end), ("remark", step.remark), ("packet", step.number)):
        if value:
            out[key] = value
    if step.stages:
        out["stages"] = [{"time_ns": s.time, "netns": s.netns, "text": s.text} for s in step.stages]
    return out


def _fact(fact: Fact) -> Object:
    return {"subject": fact.subject, "state": fact.state, "text": fact.text}


def rfc3339(ns: int) -> str:
    """UTC with nanoseconds: 2026-01-31T14:03:22.118204511Z."""
    seconds, rest = divmod(ns, 1_000_000_000)
    return f"{_second(seconds)}.{rest:09d}Z"


@lru_cache(16)
def _second(epoch: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(epoch))


FORMAT = Json
