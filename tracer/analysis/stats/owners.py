# SPDX-License-Identifier: Apache-2.0
"""Counts the owners of deciding rules and of packets' endpoints."""

from __future__ import annotations

from collections.abc import Iterator

from tracer.analysis.result_table import ResultTable
from tracer.analysis.stats._counter import KeyCounter, titled
from tracer.model.hop import nat_of, owner_of, verdict_of
from tracer.model.packet import Packet

SHOWN = 20


class OwnerStatistic:
    def __init__(self) -> None:
        self._rules: KeyCounter[tuple[str, str]] = KeyCounter()
        self._ends: KeyCounter[tuple[str, str]] = KeyCounter()

    def feed(self, packet: Packet) -> None:
        for hop in packet.hops:
            owner, nat = owner_of(hop), nat_of(hop)
            if owner and not hop.clone:
                self._rules.add((owner.text, nat.kind if nat else verdict_of(hop)))
        for end, owner in (("from", packet.src_owner), ("to", packet.dst_owner)):
            if owner and owner.known:
                self._ends.add((end, owner.text))

    def tables(self) -> Iterator[ResultTable]:
        rows = [(count, what, whose) for (whose, what), count in self._rules.most(SHOWN)]
        yield ResultTable(titled("Owners of what decided", self._rules), ("packets", "what", "whose"), rows)
        rows = [(count, end, whose) for (end, whose), count in self._ends.most(SHOWN)]
        yield ResultTable(titled("Sources and destinations", self._ends), ("packets", "end", "who"), rows)


STATISTIC = OwnerStatistic
