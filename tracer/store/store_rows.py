# SPDX-License-Identifier: Apache-2.0
"""The rows of the results of a run, for all tables of a store: those of a capture, the whole packet, and the rules in force."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator, Sequence

from tracer.analysis.connection_totals import ConnectionTotals, OpenConnections
from tracer.analysis.packet_decision import table_of
from tracer.analysis.table_schema import Value
from tracer.analysis.tables import tables
from tracer.analysis.tables.losses import DatedLoss
from tracer.model.counter_mismatch import CounterMismatch
from tracer.model.finding import Finding
from tracer.model.handshake import HandshakeVerdict
from tracer.model.hop import NatHop, RuleHop
from tracer.model.loss import Loss
from tracer.model.packet import Packet
from tracer.model.rule import Ruleset
from tracer.model.timeline import Timeline
from tracer.protocol.tree_codec import encode
from tracer.store.partition import HOUR_US
from tracer.store.segment import StoredRow
from tracer.store.stored_tables import RULESETS
from tracer.util.lru_dict import LruDict

MOST_RULE_TEXT = 16 << 20
"""Longest text of the rules of one table, characters."""
LATEST_US = 1 << 52
"""Times from here on are no times, us since the epoch."""


class StoreRows:
    """Makes rows.

    Attributes:
        clock_offset: ns to add to CLOCK_MONOTONIC to get ns since the epoch; 0 = not known.
        latest: Time of the latest packet, ns since the epoch; 0 = there was none.
    """

    def __init__(self, clock_offset: int = 0) -> None:
        self.clock_offset, self.latest = clock_offset, 0
        self._connections = OpenConnections()
        self._digests: LruDict[tuple[int, str, str], tuple[Ruleset, str]] = LruDict(16, "digests of rules for the store")
        self._stored: LruDict[tuple[str, int], bool] = LruDict(1024, "rulesets in the store")

    def packet(self, packet: Packet, is_whole: bool = True) -> Iterator[StoredRow]:
        """The rows of a packet, and of the rules in force where they are new in this hour.

        Args:
            packet: The packet.
            is_whole: All of them. If not, only that of `drops`, which takes a tenth of the time.
        """
        self._connections.feed(packet)
        at = _at(packet.time)
        self.latest = max(self.latest, packet.time)
        for name, table in tables().items():
            if table.reads is not Packet or not (is_whole or name == "drops"):
                continue
            if name == "rule_hits":
                yield from self._rule_hits(packet, at)
            elif name == "packets":
                (row,) = table.rows(packet)
                yield StoredRow(name, at, (*row, _tree(packet)))
            else:
                yield from (StoredRow(name, at, row) for row in table.rows(packet))

    def _rule_hits(self, packet: Packet, at: int) -> Iterator[StoredRow]:
        """The rows of the rules that acted. The digests are in the order of the rows of tracer/analysis/tables/rule_hits.py."""
        digests: list[str | None] = []
        for hop in packet.hops:
            if isinstance(hop, RuleHop | NatHop) and hop.rule_trace:
                for hit in hop.rule_trace.hits:
                    family, name = table_of(packet, hop, hit)
                    digest = None
                    if hop.rule_trace.ruleset:
                        digest, new = self._ruleset(hop.rule_trace.ruleset, family, name, str(hop.netns), at)
                        yield from new
                    digests.append(digest)
        for row, digest in zip(tables()["rule_hits"].rows(packet), digests, strict=True):
            yield StoredRow("rule_hits", at, (*row, digest))

    def _ruleset(
        self, ruleset: Ruleset, family: str, table: str, netns: str, at: int
    ) -> tuple[str | None, Sequence[StoredRow]]:
        """The digest of the rules of one table, and their row if the store does not have them in this hour."""
        lines: list[str] = []
        known = self._digests.get((id(ruleset), family, table))  # the entry keeps the ruleset, so no other one has its id
        if known is None:
            lines = list(_lines(ruleset, family, table))
            key = "\n".join((ruleset.backend, netns, family, table, *lines))
            digest = hashlib.sha256(key.encode("utf-8", "backslashreplace")).hexdigest()[:24] if lines else ""
            known = ruleset, digest
            self._digests[id(ruleset), family, table] = known
        digest = known[1]
        if not digest:
            return None, ()
        if (digest, at // HOUR_US) in self._stored:
            return digest, ()
        self._stored[digest, at // HOUR_US] = True
        text, kept = _bounded(lines or list(_lines(ruleset, family, table)))
        count = sum(len(rules) for chain, rules in ruleset.chains.items() if chain[:2] == (family, table))
        values = digest, netns, ruleset.backend, ruleset.generation, family, table, count, kept, text
        return digest, (StoredRow(RULESETS, at, values),)

    def forget_rulesets(self) -> None:
        """Rows were lost, perhaps some with rules: they are stored again when a packet meets them."""
        self._stored.clear()

    def syn(self, verdict: HandshakeVerdict) -> Iterator[StoredRow]:
        """The row of a SYN."""
        yield from self._plain(verdict, "syns", "seen_at")

    def connection(self, timeline: Timeline) -> Iterator[StoredRow]:
        """The row of a connection that is over."""
        totals: ConnectionTotals | None = self._connections.close(timeline)
        if totals:
            yield from self._plain(totals, "connections", "ended_at")

    def finding(self, finding: Finding) -> Iterator[StoredRow]:
        """The row of a finding."""
        yield from self._plain(finding, "findings", "last_at")

    def loss(self, loss: Loss) -> Iterator[StoredRow]:
        """The row of a loss."""
        yield from self._plain(DatedLoss(loss, self.clock_offset), "losses", "until_at")

    def rows_not_stored(self, table: str, count: int, why: str) -> StoredRow:
        """The row that says that rows are missing in the store."""
        now = time.time_ns() // 1000
        reason = f"rows of {table or 'a table that is not known'}: {why}"
        values: dict[str, Value] = {"until_at": now, "until_ns": now * 1000, "probe": "store", "lost": count, "reason": reason}
        return StoredRow("losses", now, tuple(values.get(column.name) for column in tables()["losses"].columns))

    def counters(self, differences: Sequence[CounterMismatch], now: int) -> Iterator[StoredRow]:
        """The rows of kernel counters. now: end of the run, ns since the epoch."""
        for difference in differences:
            yield from (StoredRow("counters", _at(now), row) for row in tables()["counters"].rows(difference))

    @staticmethod
    def _plain(read: object, name: str, time_column: str) -> Iterator[StoredRow]:
        table = tables()[name]
        place = [column.name for column in table.columns].index(time_column)
        for row in table.rows(read):
            value = row[place]
            yield StoredRow(name, _at(value * 1000 if isinstance(value, int) else 0), row)


def _at(ns: int) -> int:
    """us since the epoch, for the partition; now, where the time is not known."""
    us = ns // 1000
    return us if 0 < us < LATEST_US else time.time_ns() // 1000


def _tree(packet: Packet) -> Value:
    """The whole packet as JSON; None where it is too long for that."""
    try:
        return json.dumps(encode(packet), separators=(",", ":"), allow_nan=False)
    except ValueError:
        return None


def _lines(ruleset: Ruleset, family: str, table: str) -> Iterator[str]:
    """Yields the rules of a table, like iptables-save: first the chains with their policies, then the rules."""
    chains = {key: rules for key, rules in ruleset.chains.items() if key[:2] == (family, table)}
    for key in chains:
        yield f":{key[2]} {ruleset.policies.get(key, '-')}"
    for key, rules in chains.items():
        for rule in rules:
            text = rule.text or f"{rule.target} {rule.comment}".strip()
            yield f"-A {key[2]} {text}".rstrip()


def _bounded(lines: Sequence[str]) -> tuple[str, int]:
    """The text of the lines, as many as fit, and the number of rules among them."""
    size = kept = rules = 0
    for line in lines:
        size += len(line) + 1
        if size > MOST_RULE_TEXT:
            break
        kept += 1
        rules += line.startswith("-A ")
    return "\n".join(lines[:kept]), rules
