# SPDX-License-Identifier: Apache-2.0
"""The HTML export: one offline page with findings, a timeline, statistics, and drawings of packets' paths through the hooks.

report.html in this directory is the page. Only data is inserted, never markup. The statistics cover all packets. The drawings
cover the first MOST_BAD packets with a bad outcome and the first MOST_GOOD others.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from tracer import __version__
from tracer.analysis import stats
from tracer.analysis.result_table import ResultTable
from tracer.export import CaptureInfo
from tracer.model.finding import Finding
from tracer.model.packet import Packet
from tracer.model.summary import RunSummary
from tracer.packets.outcome import BAD
from tracer.render.json import finding_object
from tracer.render.parts.json_packet import packet_object
from tracer.util.escape import escaped, json_line, mapped
from tracer.util.new_file import fresh

DESCRIPTION = "a report in one file, to be read in a browser, offline"
TEMPLATE = Path(__file__).with_name("report.html")
MOST_BAD, MOST_GOOD = 1000, 1000
"""Maximum number of packets in the page, with bad and with good outcomes."""
SLICES = 120
"""Maximum number of slices of the timeline. The length of a slice doubles when a capture needs more."""


class OutcomeChart:
    """Packets by outcome over time, in at most SLICES slices of equal length."""

    def __init__(self) -> None:
        self.begin, self.length = 0, 10_000_000
        self._slices: list[Counter[str]] = []

    def add(self, time: int, outcome: str) -> None:
        self.begin = self.begin or time
        at = max(0, (time - self.begin) // self.length)
        while at >= SLICES:
            pairs = zip(self._slices[::2], [*self._slices[1::2], Counter[str]()], strict=False)
            self._slices = [a + b for a, b in pairs]
            self.length *= 2
            at = max(0, (time - self.begin) // self.length)
        while len(self._slices) <= at:
            self._slices.append(Counter())
        self._slices[at][outcome] += 1

    def to_object(self) -> dict[str, Any]:
        return {"begin": self.begin, "length": self.length, "slices": [dict(s) for s in self._slices]}


class Html:
    """Collects the data and writes the page at the end."""

    def __init__(self, target: Path, about: CaptureInfo) -> None:
        self._about = about
        self._file = open(fresh(target), "w", encoding="utf-8")  # noqa: SIM115  # closed by close()
        self._statistics = [stats.make(name) for name in stats.names()]
        self._timeline = OutcomeChart()
        self._packets: list[dict[str, Any]] = []
        self._bad = self._good = 0
        self._findings: list[dict[str, Any]] = []

    def packet(self, packet: Packet) -> None:
        for one in self._statistics:
            one.feed(packet)
        self._timeline.add(packet.time, packet.outcome)
        if packet.outcome in BAD or not packet.complete:
            self._bad += 1
            kept = self._bad <= MOST_BAD
        else:
            self._good += 1
            kept = self._good <= MOST_GOOD
        if kept:
            # In addition to JSON's keys: the time as a number, for the page's script.
            self._packets.append(packet_object(packet) | {"ns": str(packet.time)})

    def finding(self, finding: Finding) -> None:
        self._findings.append(finding_object(finding))

    def close(self, summary: RunSummary) -> None:
        about = self._about
        data = {
            "version": __version__,
            "about": {"path": about.path, "host": about.host, "kernel": about.kernel, "options": about.options},
            "totals": {
                "packets": summary.packets, "incomplete": summary.incomplete, "events": summary.events, "lost": summary.lost,
                "seconds": round(summary.seconds, 3), "outcomes": summary.outcomes,
            },
            "lost": [[probe, why, count] for (probe, why), count in sorted(about.lost.items())],
            "facts": [[f.subject, f.text] for f in about.results if f.state != "ok"],
            "findings": self._findings,
            "timeline": self._timeline.to_object(),
            "tables": [_table(t) for one in self._statistics for t in one.tables()],
            "packets": self._packets,
        }  # fmt: skip
        text = json_line(mapped(data, escaped))
        # The data stands in a script element, which only its end tag could end.
        text = text.replace("<", "\\u003c")
        page = TEMPLATE.read_text(encoding="utf-8").replace("@DATA@", text)
        with self._file as file:
            file.write(page)


def _table(table: ResultTable) -> dict[str, Any]:
    return {"title": table.title, "columns": table.columns, "rows": table.rows, "bar": table.bar}


EXPORT = Html
