# SPDX-License-Identifier: Apache-2.0
"""Packets as rows of flat tables, for Parquet and SQL. This module is the only definition of the columns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tracer.model.finding import Finding
from tracer.model.hop import DropHop, Hop, RuleHop, SocketHop, is_from_conntrack, nat_of, owner_of, trace_of, verdict_of
from tracer.model.packet import Packet
from tracer.model.rule import Rule, RuleTrace, format_path

Row = dict[str, Any]

COLUMNS: dict[str, dict[str, str]] = {
    "packets": {
        "number": "int64", "time": "timestamp", "netns": "string", "iface": "string", "family": "string", "protocol": "string",
        "src": "string", "sport": "int32", "dst": "string", "dport": "int32", "tcp_flags": "string", "length": "int32",
        "seq": "int64", "ct_state": "string", "reply": "bool", "orig_src": "string", "orig_sport": "int32",
        "orig_dst": "string", "orig_dport": "int32", "reply_src": "string", "reply_sport": "int32", "reply_dst": "string",
        "reply_dport": "int32", "src_owner": "string", "dst_owner": "string", "verdict": "string", "outcome": "string",
        "complete": "bool", "drop_reason": "string", "drop_function": "string", "took_ns": "int64",
        "unexplained": "string",
    },
    "hops": {
        "packet": "int64", "place": "int32", "time": "timestamp", "after_ns": "int64", "what": "string", "netns": "string",
        "hook": "string", "table": "string", "chain": "string", "verdict": "string", "evidence": "string",
        "in_iface": "string", "out_iface": "string", "mark": "int64", "copy": "bool", "nat": "string", "src": "string",
        "sport": "int32", "dst": "string", "dport": "int32", "chain_path": "string", "rule": "string", "owner": "string",
        "owner_kind": "string", "owner_name": "string", "from_conntrack": "bool", "undecided": "string", "pid": "int32",
        "command": "string", "drop_reason": "string",
    },
    "acted": {
        "packet": "int64", "place": "int32", "step": "int32", "family": "string", "table": "string", "chain": "string",
        "number": "int32", "handle": "int64", "verdict": "string", "evidence": "string", "rule": "string", "comment": "string",
    },
    "findings": {
        "name": "string", "certain": "bool", "cause": "string", "check": "string", "cure": "string", "packets": "int64",
        "first": "timestamp", "last": "timestamp", "proofs": "string",
    },
}  # fmt: skip
"""Table -> column -> type. hops.src, .sport, .dst, .dport: the header after a rewrite. Times are ns since the epoch."""


def of_packet(packet: Packet) -> Iterator[tuple[str, Row]]:
    """Yields (table, row) for a packet. Columns that do not apply are absent."""
    ends, flow, drop = packet.endpoints, packet.flow, packet.drop
    began = packet.hops[0].time if packet.hops else 0
    row: Row = {
        "number": packet.number, "time": packet.time, "netns": packet.netns, "iface": packet.iface, "family": packet.family,
        "protocol": packet.protocol, "src": ends.src, "sport": ends.sport, "dst": ends.dst, "dport": ends.dport,
        "tcp_flags": packet.tcp_flags, "length": packet.length, "seq": packet.seq, "verdict": packet.verdict,
        "outcome": packet.outcome.value, "complete": packet.complete,
        "took_ns": packet.hops[-1].time - began if packet.hops else 0,
        "src_owner": packet.src_owner.text if packet.src_owner else None,
        "dst_owner": packet.dst_owner.text if packet.dst_owner else None,
    }  # fmt: skip
    if flow:
        row |= {"ct_state": flow.state, "reply": flow.is_reply}
        for name, way in (("orig", flow.orig), ("reply", flow.reply)):
            row |= {f"{name}_src": way.src, f"{name}_sport": way.sport, f"{name}_dst": way.dst, f"{name}_dport": way.dport}
    if packet.unexplained:
        row["unexplained"] = packet.unexplained.value
    if drop:
        row |= {"drop_reason": drop.reason, "drop_function": drop.function}
    yield "packets", row
    for place, hop in enumerate(packet.hops):
        yield "hops", _hop(packet, place, hop, began)
        if isinstance(hop, RuleHop) and hop.rule_trace:
            yield from _acted(packet.number, place, hop.rule_trace)


def _hop(packet: Packet, place: int, hop: Hop, began: int) -> Row:
    table, chain = (hop.table, hop.base_chain) if isinstance(hop, RuleHop) else ("", "")
    row: Row = {
        "packet": packet.number, "place": place, "time": packet.time + hop.time - began, "after_ns": hop.time - began,
        "what": hop.kind.value, "netns": hop.netns, "hook": hop.hook, "table": table, "chain": chain,
        "verdict": verdict_of(hop), "evidence": hop.evidence.value, "in_iface": hop.in_iface, "out_iface": hop.out_iface,
        "mark": hop.mark, "copy": hop.clone, "from_conntrack": is_from_conntrack(hop),
    }  # fmt: skip
    nat, trace, owner = nat_of(hop), trace_of(hop), owner_of(hop)
    if nat:
        after = nat.after
        row |= {"nat": nat.kind, "src": after.src, "sport": after.sport, "dst": after.dst, "dport": after.dport}
    if trace:
        row["undecided"] = trace.undecided or None
        if trace.decision:
            rule = trace.decision.rule
            row |= {"chain_path": format_path(trace.decision.path), "rule": rule.text if rule else "policy"}
    if owner:
        row |= {"owner": owner.text, "owner_kind": owner.kind, "owner_name": owner.label}
    if isinstance(hop, SocketHop):
        row |= {"pid": hop.socket.pid, "command": hop.socket.command}
    if isinstance(hop, DropHop):
        row["drop_reason"] = hop.drop.reason
    return row


def _acted(packet: int, place: int, trace: RuleTrace) -> Iterator[tuple[str, Row]]:
    for step, hit in enumerate(trace.hits):
        rule = hit.rule or Rule("", "", hit.location.chain, 0, "policy")
        yield "acted", {
            "packet": packet, "place": place, "step": step, "family": rule.family, "table": rule.table, "chain": rule.chain,
            "number": rule.number, "handle": rule.handle, "verdict": hit.verdict, "evidence": hit.evidence.value,
            "rule": rule.text, "comment": rule.comment,
        }  # fmt: skip


def of_finding(finding: Finding) -> Row:
    proofs = "\n".join(f"{p.what}: {p.text} ({p.evidence})" for p in finding.proofs)
    return {
        "name": finding.name, "certain": finding.certain, "cause": finding.cause, "check": finding.check, "cure": finding.cure,
        "packets": finding.packets, "first": finding.first, "last": finding.last, "proofs": proofs,
    }  # fmt: skip
