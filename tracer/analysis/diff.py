# SPDX-License-Identifier: Apache-2.0
"""Compares two captures: added and removed rules, and the outcomes of packets of the same kind.

Packets are of the same kind if they have the same protocol, destination address and port. Clients' addresses and ports do not
count.
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
from tracer.model.hop import decision_of, is_from_conntrack, nat_of, owner_of, verdict_of
from tracer.model.packet import Packet
from tracer.rules.iptables.entry import MalformedTable

RuleKey = tuple[str, str, str, str, str]
"""Namespace, family, table, chain, text (or target and comment where there is no text)."""

MOST_DECISIONS = 100
"""Maximum number of different decisions that are counted for one kind of packets."""

Kind = tuple[str, str, int]
"""Protocol, requested address, port."""


@dataclass
class CaptureProfile:
    """The profile of one capture.

    Attributes:
        rules: The rules of the last readings, with their numbers.
        ends: Number of packets by kind and outcome.
        decided: Number of packets by kind and decision.
        partial: Kinds of which not every decision is counted, because there are too many.
        is_full: Whether there are more kinds than are counted: a kind that is missing may have been seen.
    """

    rules: dict[RuleKey, int] = field(default_factory=dict)
    ends: dict[Kind, Counter[str]] = field(default_factory=dict)
    decided: dict[Kind, Counter[str]] = field(default_factory=dict)
    partial: set[Kind] = field(default_factory=set)
    is_full: bool = False

    def feed(self, packet: Packet) -> None:
        """Counts a packet. An answer counts for its request."""
        ends = packet.flow.orig if packet.flow else packet.endpoints
        if not packet.flow and "SYN ACK" in packet.tcp_flags:
            ends = ends.reversed  # an answer without a connection: its destination port is the client's
        kind = packet.protocol, ends.dst, ends.dport
        if kind not in self.ends and len(self.ends) >= MOST:
            self.is_full = True
            return
        self.ends.setdefault(kind, Counter())[packet.outcome] += 1
        for hop in packet.hops:
            owner, nat = owner_of(hop), nat_of(hop)
            if owner and decision_of(hop) and not hop.clone and not is_from_conntrack(hop):
                what = f"{nat.kind if nat else verdict_of(hop)}: {owner.text}"
                counts = self.decided.setdefault(kind, Counter())
                if what in counts or len(counts) < MOST_DECISIONS:
                    counts[what] += 1
                else:
                    self.partial.add(kind)


def rules_of(capture: CaptureReader) -> dict[RuleKey, int]:
    """Returns the rules at the end of a capture, from the last reading of each table and namespace."""
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
        except (MalformedRecord, MalformedTable):  # a table's rules are decoded on demand
            continue
    return {key: number for rules in last.values() for key, number in rules}


def _names(capture: CaptureReader) -> dict[int, str]:
    namespaces = capture.meta.get("namespaces")
    pairs = namespaces.get("names", {}).get("dict", []) if isinstance(namespaces, dict) else []
    return {pair[0]: str(pair[1]) for pair in pairs if isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], int)}


def _key(netns: str, rule: Any) -> RuleKey:
    text = rule.text or f"{rule.target} {rule.comment}".strip() or f"rule {rule.number}"
    return netns, rule.family, rule.table, rule.chain, text


def tables(a: CaptureProfile, b: CaptureProfile, names: tuple[str, str]) -> Iterator[ResultTable]:
    """Yields the tables of differences, also the empty ones: "no change" is a result, too."""
    columns = ("namespace", "family", "table", "chain", "number", "rule")
    for title, one, other in ((f"Rules only in {names[0]}", a, b), (f"Rules only in {names[1]}", b, a)):
        rows = [(*key[:4], number, key[4]) for key, number in one.rules.items() if key not in other.rules]
        yield ResultTable(title, columns, sorted(rows, key=lambda r: (r[:4], r[4])))
    for title, of in (("Outcomes that differ", "ends"), ("What decided that differs", "decided")):
        yield ResultTable(title, ("asked for", *names), list(_changed(a, b, of)))


def _changed(a: CaptureProfile, b: CaptureProfile, of: str) -> Iterator[tuple[str, str, str]]:
    """Yields the kinds with different outcomes or decisions. Different numbers of packets do not count.

    A kind that was perhaps not counted in full, in one of the captures, is left out.
    """
    before, after = getattr(a, of), getattr(b, of)
    for kind in sorted({*before, *after}):
        if any((each.is_full and kind not in each.ends) or (of == "decided" and kind in each.partial) for each in (a, b)):
            continue
        old, new = before.get(kind, Counter()), after.get(kind, Counter())
        if set(old) != set(new):
            protocol, address, port = kind
            yield f"{protocol} {address}{f':{port}' if port else ''}", _format_counts(old), _format_counts(new)


def _format_counts(counts: Counter[str]) -> str:
    return ", ".join(f"{what} {count}" for what, count in counts.most_common(4)) or "not seen"
