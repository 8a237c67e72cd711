# SPDX-License-Identifier: Apache-2.0
"""Counts the deciding rules and their verdicts."""

from __future__ import annotations

from collections.abc import Iterator

from tracer.analysis.result_table import ResultTable
from tracer.analysis.stats._counter import KeyCounter, titled
from tracer.model.hop import RuleHop
from tracer.model.packet import Packet
from tracer.render.parts.rule_lines import format_rule

SHOWN = 30


class RuleStatistic:
    def __init__(self) -> None:
        self._decided: KeyCounter[tuple[str, str, str, str]] = KeyCounter()
        self._policies: KeyCounter[tuple[str, str, str]] = KeyCounter()
        self._undecided: KeyCounter[str] = KeyCounter()

    def feed(self, packet: Packet) -> None:
        for hop in packet.hops:
            if not isinstance(hop, RuleHop) or hop.clone or not hop.rule_trace:
                continue
            decision = hop.rule_trace.decision
            if decision and decision.location.number:
                place = f"{decision.location.chain} {decision.location.number}"
                verdict = f"{decision.verdict} (malformed packet)" if decision.hotdrop else decision.verdict
                self._decided.add((hop.table, place, verdict, format_rule(decision.rule) if decision.rule else ""))
            elif decision:
                self._policies.add((hop.table, decision.location.chain, decision.verdict))
            elif hop.rule_trace.undecided:
                self._undecided.add(hop.rule_trace.undecided)

    def tables(self) -> Iterator[ResultTable]:
        rows: list[tuple[object, ...]] = [(count, *what) for what, count in self._decided.most(SHOWN)]
        yield ResultTable(titled("Rules that decided", self._decided), ("packets", "table", "place", "verdict", "rule"), rows)
        if self._policies.of:
            rows = [(count, *what) for what, count in self._policies.most(SHOWN)]
            title = titled("Policies that decided (no rule did)", self._policies)
            yield ResultTable(title, ("packets", "table", "chain", "verdict"), rows)
        if self._undecided.of:
            rows = [(count, why) for why, count in self._undecided.most(SHOWN)]
            yield ResultTable(titled("Where the rule is not known", self._undecided), ("packets", "why"), rows)


STATISTIC = RuleStatistic
