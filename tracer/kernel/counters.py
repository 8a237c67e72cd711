"""What was lost, by probe and CPU: events that found no room, and calls whose return nobody saw."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tracer import cstruct
from tracer.kernel.plan import Planned
from tracer.kernel.program import Program


@dataclass(frozen=True)
class Loss:
    """`count` events of a probe lost since the counters were last read. cpu -1 = not known by CPU."""

    probe: str
    cpu: int
    count: int
    why: str


class Counters:
    """Reads the loss counters and tells what has been added since the last reading."""

    def __init__(self, program: Program, rows: list[Planned]) -> None:
        self._program, self._rows = program, rows
        kinds = (*cstruct.enum("event.h", "event_kind"), *cstruct.enum("steps.h", "other_kind"))
        self._kinds = {k.value: k.name[6:].lower() for k in kinds}
        self._known: dict[tuple[str, int, str], int] = {}

    def _totals(self) -> Iterator[Loss]:
        bpf = self._program.bpf
        for kind, counts in _per_cpu(bpf[b"lost"]):
            for cpu, count in enumerate(counts):
                yield Loss(self._kinds.get(kind, str(kind)), cpu, count, "the ring buffer was full")
        returned = dict(_per_cpu(bpf[b"returned"]))
        kept = dict(_per_cpu(bpf[b"kept"]))
        for row in self._rows:
            if row.way == "KRETPROBE":
                # A call may be under way on each CPU, so a small difference is no loss.
                missed = sum(kept[row.number]) - sum(returned[row.number])
                yield Loss(row.probe.name, -1, max(0, missed - len(kept[row.number])), "its return was missed")
            fd = self._program.functions[row.probe.name].fd
            yield Loss(row.probe.name, -1, self._program.recursion_misses(fd), "another probe was running")

    def read(self) -> list[Loss]:
        """New losses since the last call."""
        new = []
        for total in self._totals():
            key = (total.probe, total.cpu, total.why)
            added = total.count - self._known.get(key, 0)
            if added > 0:
                self._known[key] = total.count
                new.append(Loss(total.probe, total.cpu, added, total.why))
        return new


def _per_cpu(table: Any) -> Iterator[tuple[int, list[int]]]:
    """Index and one value per CPU of each element of a per-CPU array."""
    for key, values in table.items():
        yield int(key.value), [int(v) for v in values]
