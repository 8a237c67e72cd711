# SPDX-License-Identifier: Apache-2.0
"""The tracer as one of the compared tools: a Session in a separate process, as with the command.

Started as `python3 -m bench.worker WAY FILE` (WAY: "", "no-rules" or "kprobe"). Prints one line of JSON when the probes are
ready; then reads one command per line from stdin, and answers each with one line of JSON on stdout:

    port N       probes on, filter: port N
    everything   probes on, no filter; every event is appended to FILE
    times        run time of each program since it was loaded: {name: [ns, runs]} (needs kernel.bpf_stats_enabled)
    off          probes off; {events, lost, why} since they went on

Between commands it works as tracer/pipeline/live_source.py: it drains the ring, writes what came to FILE, and reads the loss
counters every POLL_SECONDS. Events are counted in FILE after `off`.
Compiling takes longer than measuring, so `off` only detaches, and the next `port` or `everything` attaches again.
"""

from __future__ import annotations

import json
import select
import sys
from pathlib import Path
from typing import Any

import numpy as np

from tracer.events import record
from tracer.kernel.session import Kernel, Session
from tracer.model.filter import Filter
from tracer.pipeline.live_source import POLL_SECONDS
from tracer.rules.nftables.trace_key import TraceSwitch

PART = 1 << 16
"""Bytes of one write: for each page of a write to a file in memory Linux 6.12 touches the pages of all that is left of it."""


class Worker:
    """Serves the commands. file: gets the events of `everything`; it is emptied each time the probes go on."""

    def __init__(self, way: str, file: Path) -> None:
        self._session = Session(Kernel.running(), Filter(), only=way.replace("no-rules", ""), rules=way != "no-rules")
        self._program: Any = self._session._programs
        self._file, self._attached = file, True
        self._traces_nft = any(row.probe.name == "nft_rule" for row in self._session.planned)
        self._switch: TraceSwitch | None = None
        self._out = file.open("wb")
        self._begin(Filter())

    def _begin(self, selected: Filter) -> dict[str, Any]:
        """Turns the probes on, and discards what is left in the ring."""
        self._session.set_filter(selected)
        if not self._attached:
            self._program.attach(self._session.planned)
            self._program.watch(self._session.watched)
            self._attached = True
        if self._traces_nft and not self._switch:
            self._switch = TraceSwitch()
        self._session.drain()
        self._session.losses()
        self._lost = 0
        self._why: dict[str, int] = {}
        self._out.seek(0)
        self._out.truncate()
        return {"rows": len(self._session.planned), "ways": sorted({r.way for r in self._session.planned})}

    def port(self, number: str) -> dict[str, Any]:
        return self._begin(Filter(ports=(int(number),)))

    def everything(self) -> dict[str, Any]:
        return self._begin(Filter())

    def times(self) -> dict[str, Any]:
        """Run time and runs by program; a kretprobe's entry half is a program of its own."""
        found = self._program.run_times()
        rows = {f"{name} for {row.symbol}": (row.symbol, way) for row in self._session.planned for name, way in row.programs}
        ways = {name: f"{symbol} ({way.lower()})" for name, (symbol, way) in rows.items()}
        return {ways.get(name, name): times for name, times in found.items()}

    def off(self) -> dict[str, Any]:
        self._program.detach((*self._session.planned, *self._session.watched))
        self._attached = False
        if self._switch:
            self._switch.close()
            self._switch = None
        self.turn()
        self._out.flush()
        slots = np.fromfile(self._file, np.uint8).reshape(-1, record.SLOT)
        return {"events": record.count(slots), "lost": self._lost, "why": self._why, "bytes": slots.nbytes}

    def turn(self) -> None:
        """One iteration of the tracer's loop."""
        events = self._session.drain().ravel().data
        for at in range(0, len(events), PART):
            self._out.write(events[at : at + PART])
        for loss in self._session.losses():
            self._lost += loss.count
            self._why[loss.why] = self._why.get(loss.why, 0) + loss.count

    def serve(self) -> None:
        """Serves commands until stdin ends."""
        print(json.dumps(self.off()), flush=True)
        while True:
            if not select.select([sys.stdin], [], [], POLL_SECONDS)[0]:
                if self._attached:
                    self.turn()
                continue
            command, *arguments = sys.stdin.readline().split() or [""]
            if not command:
                self._session.close()
                return
            print(json.dumps(getattr(self, command)(*arguments)), flush=True)


if __name__ == "__main__":
    Worker(sys.argv[1], Path(sys.argv[2])).serve()
