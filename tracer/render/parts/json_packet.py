# SPDX-License-Identifier: Apache-2.0
"""Makes the JSON object of a packet and its hops. tracer/render/schema.json defines the keys."""

from __future__ import annotations

import time
from dataclasses import asdict, fields
from functools import lru_cache
from typing import Any

from tracer.model.bpf_program import AttachedProgram, ProgramAction
from tracer.model.endpoints import Endpoints
from tracer.model.hop import (
    DecidingHop,
    DetailHop,
    Drop,
    DropHop,
    Handshake,
    HandshakeHop,
    Hop,
    IpvsDecision,
    IpvsNatHop,
    IpvsRefusalHop,
    NatHop,
    Redirect,
    RedirectHop,
    RewriteHop,
    RouteHop,
    RuleHop,
    Socket,
    SocketHop,
    is_from_conntrack,
    owner_of,
    trace_of,
    verdict_of,
)
from tracer.model.kube import UNKNOWN, Owner
from tracer.model.packet import Flow, Packet
from tracer.model.rule import Rule, RuleHit, RuleTrace, format_path

Object = dict[str, Any]
_OWNER_FIELDS = tuple(field.name for field in fields(Owner))


def packet_object(packet: Packet) -> Object:
    """Returns the fields of a `packet` line, without its type."""
    began = packet.hops[0].time if packet.hops else 0
    out: Object = {
        "number": packet.number,
        "time": rfc3339(packet.time),
        "netns": packet.netns,
        "family": "ipv6" if ":" in packet.endpoints.src else "ipv4",
        "proto": packet.protocol.lower(),
        **endpoints(packet.endpoints),
        "length": packet.length,
    }
    if packet.family == "IPv4":
        out["ip_id"] = packet.ident
    if packet.iface:
        out["ifname"] = packet.iface
    if packet.tcp_flags:
        out["tcp_flags"], out["seq"] = packet.tcp_flags, packet.seq
    if packet.flow:
        out["flow"] = _flow(packet.flow)
    ends = {"src": packet.src_owner, "dst": packet.dst_owner}
    known_ends = {end: _owner(owner) for end, owner in ends.items() if owner and owner != UNKNOWN}
    if known_ends:
        out["ends"] = known_ends
    out["hops"] = [_hop(hop, began) for hop in packet.hops]
    out["verdict"], out["outcome"], out["complete"] = packet.verdict, packet.outcome.value, packet.complete
    if packet.unexplained:
        out["unexplained"] = packet.unexplained.value
    if packet.continues:
        out["continues"] = rfc3339(packet.continues)
    if packet.drop:
        out["drop"] = _drop(packet.drop)
    if packet.handshake:
        out["syn"] = _handshake(packet.handshake)
    return out


def _hop(hop: Hop, began: int) -> Object:
    out: Object = {"time_ns": hop.time - began, "what": hop.kind.value, "netns": hop.netns, "evidence": hop.evidence.value}
    table, chain = (hop.table, hop.base_chain) if isinstance(hop, RuleHop) else ("", "")
    for key, text in (
        ("hook", hop.hook),
        ("table", table),
        ("chain", chain),
        ("route", hop.route if isinstance(hop, RouteHop) else ""),
        ("verdict", verdict_of(hop)),
        ("reject", hop.reject if isinstance(hop, DecidingHop) else ""),
        ("in_ifname", hop.in_iface),
        ("out_ifname", hop.out_iface),
        ("mark", hop.mark),
        ("clone", hop.clone),
    ):
        if text:
            out[key] = text
    if trace := trace_of(hop):
        out |= _trace(trace)
    if is_from_conntrack(hop):
        out["from_conntrack"] = True
    if isinstance(hop, RewriteHop):
        before, after = endpoints(hop.nat.before), endpoints(hop.nat.after)
        out["nat"] = {"kind": hop.nat.kind, "before": before, "after": after}
    match hop:
        case IpvsNatHop() | IpvsRefusalHop():
            out["ipvs"] = _ipvs(hop.decision)
        case HandshakeHop():
            out["handshake"] = _handshake(hop.handshake)
        case SocketHop():
            out["socket"] = _socket(hop.socket)
        case DropHop():
            out["drop"] = _drop(hop.drop)
        case RedirectHop():
            out["redirect"] = _redirect(hop.redirect)
        case NatHop() if hop.program:
            out["program"] = _program_action(hop.program)
        case DetailHop():
            out["clue"] = {"what": hop.detail.what, **hop.detail.facts}
    if owner := owner_of(hop):
        out["owner"] = _owner(owner)
    return out


def _trace(trace: RuleTrace) -> Object:
    """Returns the deciding rule and all rules that acted, or why they are not known."""
    out: Object = {}
    if trace.decision:
        out["chain_path"] = format_path(trace.decision.path)
        if trace.decision.rule:
            out["rule"] = _rule(trace.decision.rule)
        if trace.decision.hotdrop:
            out["hotdrop"] = trace.decision.hotdrop
    if trace.undecided:
        out["undecided"] = trace.undecided
    if trace.hits:
        out["acted"] = [_hit(v) for v in trace.hits]
    if trace.possible:
        out["possible"] = [_rule(r) for r in trace.possible]
    return out


def _hit(hit: RuleHit) -> Object:
    out: Object = {"chain_path": format_path(hit.path), "verdict": hit.verdict, "evidence": hit.evidence.value}
    if hit.rule:
        out["rule"] = _rule(hit.rule)
    if hit.element:
        out["element"] = hit.element
    if hit.hotdrop:
        out["hotdrop"] = hit.hotdrop
    return out


def _rule(rule: Rule) -> Object:
    out: Object = {"chain": rule.chain, "number": rule.number, "text": rule.text}
    for key, value in (("comment", rule.comment), ("target", rule.target), ("handle", rule.handle)):
        if value:
            out[key] = value
    return out


def _owner(owner: Owner) -> Object:
    """Returns the fields of an owner by the model's names, and the phrase of the text format."""
    return {key: text for key in _OWNER_FIELDS if (text := getattr(owner, key))} | {"text": owner.text}


def endpoints(ends: Endpoints) -> Object:
    if ends.sport or ends.dport:
        return {"src": ends.src, "sport": ends.sport, "dst": ends.dst, "dport": ends.dport}
    return {"src": ends.src, "dst": ends.dst}


def _flow(flow: Flow) -> Object:
    return {
        "orig": endpoints(flow.orig),
        "reply": endpoints(flow.reply),
        "ct_state": flow.state,
        "reply_direction": flow.is_reply,
        "zone": flow.zone,
    }


def _ipvs(decision: IpvsDecision) -> Object:
    """Returns the known fields by the model's names, with the evidence if a real server was chosen."""
    out = {key: value for key, value in asdict(decision).items() if value and key != "evidence"}
    return out | {"evidence": decision.evidence.value} if decision.chosen else out


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
    out: Object = {key: text for key, text in (("reason", drop.reason), ("function", drop.function)) if text}
    return out | ({"program": _program_action(drop.program)} if drop.program else {})


def _redirect(redirect: Redirect) -> Object:
    out: Object = {"helper": redirect.helper.value}
    for key, value in (("to", redirect.target), ("ingress", redirect.is_ingress)):
        if value:
            out[key] = value
    return out | ({"program": _program_action(redirect.program)} if redirect.program else {})


def _program_action(found: ProgramAction) -> Object:
    """Returns the program that acted, or the candidates and why none of them is named."""
    out: Object = {"point": found.point.value}
    if found.iface:
        out["ifname"] = found.iface
    if found.program:
        caveat = {"caveat": found.caveat} if found.caveat else {}
        return out | {"evidence": "observed" if found.is_observed else "derived", **caveat, **_program(found.program)}
    return out | {"evidence": "candidate" if found.candidates else "unknown", "doubt": found.doubt,
                  "candidates": [_program(each) for each in found.candidates]}  # fmt: skip


def _program(program: AttachedProgram) -> Object:
    fields = {
        "kind": program.kind, "id": program.number, "name": program.name, "tag": program.tag, "loader": program.loader,
        "loader_evidence": program.loader_evidence, "pin": program.pin, "holder": program.holder,
        "cgroup": program.cgroup,
    }  # fmt: skip
    return {key: str(value) if key == "kind" else value for key, value in fields.items() if value}


def rfc3339(ns: int) -> str:
    """Formats ns since the epoch as UTC with nanoseconds: 2026-01-31T14:03:22.118204511Z."""
    seconds, rest = divmod(ns, 1_000_000_000)
    return f"{_second(seconds)}.{rest:09d}Z"


@lru_cache(16)
def _second(epoch: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(epoch))
