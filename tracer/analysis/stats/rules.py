"""Which rules decided, and what they did."""

from __future__ import annotations

from collections.abc import Iterator

from tracer.analysis.stats._counted import Counted
from tracer.analysis.table import Table
from tracer.model import Packet
from tracer.render._rules import words
from tracer.rules.model import Visit

SHOWN = 30


class Rules:
    def __init__(self) -> None:
        self._decided: Counted[tuple[str, str, str, str]] = Counted()
        self._undecided: Counted[str] = Counted()

    def take(self, packet: Packet) -> None:
        for hop in packet.hops:
            if hop.clone or hop.nat or not hop.walk:
                continue
            if hop.walk.decision:
                self._decided.add(_of(hop.table, hop.walk.decision))
            elif hop.walk.undecided:
                self._undecided.add(hop.walk.undecided)

    def tables(self) -> Iterator[Table]:
        rows: list[tuple[object, ...]] = [(count, *what) for what, count in self._decided.most(SHOWN)]
        yield Table("Rules that decided", ("packets", "table", "place", "verdict", "rule"), rows)
        if self._undecided.of:
            rows = [(count, why) for why, count in self._undecided.most(SHOWN)]
            yield Table("Where the rule is not known", ("packets", "why"), rows)


def _of(table: str, visit: Visit) -> tuple[str, str, str, str]:
    place = f"{visit.place.chain} {visit.place.number or 'policy'}"
    return table, place, visit.verdict, words(visit.rule) if visit.rule else ""


STATISTIC = Rules
