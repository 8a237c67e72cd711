# SPDX-License-Identifier: Apache-2.0
"""What differs between two captures: rules that came and went, and how packets of one kind ended then and now.

Packets are of one kind when they went for the same port by the same protocol; client ports and addresses tell nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tracer.analysis.result_table import ResultTable
from tracer.analysis.stats import MOST
from tracer.capture.format import rulesets
from tracer.capture.format.codec import MalformedRecord
from tracer.capture.format.schema import Record
from tracer.capture.replay.capture_reader import CaptureReader
from tracer.model.packet import Packet

RuleKey = tuple[str, str, str, str, str]
"""Namespace, family, table, chain, text (or target and comment where there is no text)."""

Kind = tuple[str, str, int]
"""Protocol, address asked for, port."""


@dataclass
class CaptureProfile:
    """What one capture shows. rules: of its last readings, numbered. ends: by kind of packet, how many ended how."""

    rules: dict[RuleKey, int] = field(default_factory=dict)
    ends: dict[Kind, Counter[str]] = field(default_factory=dict)
    decided: dict[Kind, Counter[str]] = field(default_factory=dict)

    def feed(self, packet: Packet) -> None:
        """A packet of it; answers count with what they answer."""
        ends = packet.flow.orig if packet.flow else packet.endpoints
        if not packet.flow and "SYN ACK" in packet.tcp_flags:
            ends = ends.reversed  # an answer that belongs to no connection: its port is the client's, and tells nothing
        kind = packet.protocol, ends.dst, ends.dport
        if kind not in self.ends and len(self.ends) >= MOST:
            return
        self.ends.setdefault(kind, Counter())[packet.outcome] += 1
        for hop in packet.hops:
            if hop.owner and hop.rule_trace and hop.rule_trace.decision and not hop.clone and not hop.from_conntrack:
                what = f"{hop.nat.kind if hop.nat else hop.verdict}: {hop.owner.text}"
                self.decided.setdefault(kind, Counter())[what] += 1


def rules_of(capture: CaptureReader) -> dict[RuleKey, int]:
    """Every rule in force when it ended, by the last reading of each table and namespace."""
    names = _names(capture)
    last: dict[str, list[tuple[RuleKey, int]]] = {}
    for _, kind, key, body in capture.records():
        try:
            if kind == Record.READING:
                reading = rulesets.decode_reading(body)
                if reading.table:
                    of = names.get(reading.request.netns, str(reading.request.netns))
                    last[key] = [(_key(of, r), r.number) for r in reading.rules.values() if r.number]
            elif kind == Record.NFT:
                change = rulesets.decode_update(body)
                if change.snapshot:
                    of = names.get(change.inode, str(change.inode))
                    rules = [r for chain in change.snapshot.ruleset.chains.values() for r in chain]
                    last[f"nft {change.inode}"] = [(_key(of, r), r.number) for r in rules]
        except MalformedRecord:
            continue
    return {key: number for rules in last.values() for key, number in rules}


def _names(capture: CaptureReader) -> dict[int, str]:
    told = capture.meta.get("namespaces")
    pairs = told.get("names", {}).get("dict", []) if isinstance(told, dict) else []
    return {pair[0]: str(pair[1]) for pair in pairs if isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], int)}


def _key(netns: str, rule: Any) -> RuleKey:
    text = rule.text or f"{rule.target} {rule.comment}".strip() or f"rule {rule.number}"
    return netns, rule.family, rule.table, rule.chain, text


def tables(a: CaptureProfile, b: CaptureProfile, names: tuple[str, str]) -> Iterator[ResultTable]:
    """What differs; every table is there, also an empty one: that nothing changed is an answer too."""
    columns = ("namespace", "family", "table", "chain", "number", "rule")
    for title, one, other in ((f"Rules only in {names[0]}", a, b), (f"Rules only in {names[1]}", b, a)):
        rows = [(*key[:4], number, key[4]) for key, number in one.rules.items() if key not in other.rules]
        yield ResultTable(title, columns, sorted(rows, key=lambda r: (r[:4], r[4])))
    for title, of in (("Outcomes that differ", "ends"), ("What decided that differs", "decided")):
        yield ResultTable(title, ("asked for", *names), list(_changed(getattr(a, of), getattr(b, of))))


def _changed(a: dict[Kind, Counter[str]], b: dict[Kind, Counter[str]]) -> Iterator[tuple[str, str, str]]:
    """Kinds of which other things were seen; how often each was is not what counts."""
    for kind in sorted({*a, *b}):
        old, new = a.get(kind, Counter()), b.get(kind, Counter())
        if set(old) != set(new):
            protocol, address, port = kind
            yield f"{protocol} {address}{f':{port}' if port else ''}", _told(old), _told(new)


def _told(counts: Counter[str]) -> str:
    return ", ".join(f"{what} {count}" for what, count in counts.most_common(4)) or "not seen"
