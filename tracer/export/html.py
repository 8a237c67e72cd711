# SPDX-License-Identifier: Apache-2.0
"""The HTML export: one offline page with findings, causes of SYNs, a ladder of each connection, and statistics.

The page is put together from the files in report/: page.html, its style, and its scripts. Only data is inserted, never markup;
the page's content security policy allows this one script by its hash, and nothing from the network. The statistics cover all
packets; the ladders cover those that _report_packets.py keeps.
"""

from __future__ import annotations

from base64 import b64encode
from collections import Counter
from hashlib import sha256
from pathlib import Path
from typing import Any

from tracer import __version__
from tracer.analysis import stats
from tracer.analysis.result_table import ResultTable
from tracer.export import CaptureInfo, Export, ExportOptions
from tracer.export._report_packets import ReportPackets
from tracer.model.finding import Finding
from tracer.model.handshake import HandshakeVerdict
from tracer.model.packet import Packet
from tracer.model.summary import RunSummary
from tracer.render.json import finding_object
from tracer.util.escape import escaped, json_line, mapped
from tracer.util.new_file import fresh

DESCRIPTION = "a report in one file, to be read in a browser, offline"
PARTS = Path(__file__).with_name("report")
SCRIPTS = ("dom", "format", "data", "rows", "head", "filters", "connections", "ladder", "hooks", "packet", "statistics", "main")
"""The page's scripts, in the order in which they run."""
SLICES = 120
"""Maximum number of slices of the timeline. The length of a slice doubles when a capture needs more."""
_UNITS = {" us": 1e3}
"""Endings of the names of columns that are a duration, with the unit in ns."""


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
        return {"length": self.length, "slices": [dict(s) for s in self._slices]}


class Html(Export):
    """Collects the data and writes the page at the end."""

    def __init__(self, target: Path, about: CaptureInfo, options: ExportOptions = ExportOptions()) -> None:  # noqa: B008
        self._about = about
        self._file = open(fresh(target), "w", encoding="utf-8")  # noqa: SIM115  # closed by close()
        self._statistics = [stats.make(name) for name in stats.in_order()]
        self._timeline = OutcomeChart()
        self._packets = ReportPackets()
        self._causes: dict[str, list[Any]] = {}
        self._findings: list[dict[str, Any]] = []

    def packet(self, packet: Packet) -> None:
        for one in self._statistics:
            one.feed(packet)
        self._timeline.add(packet.time, packet.outcome)
        self._packets.add(packet)

    def syn(self, verdict: HandshakeVerdict) -> None:
        found = self._causes.setdefault(verdict.cause.name, [verdict.cause.good, 0])
        found[1] += 1
        self._packets.add_verdict(verdict)

    def finding(self, finding: Finding) -> None:
        self._findings.append(finding_object(finding))

    def close(self, summary: RunSummary) -> None:
        about = self._about
        data = {
            "version": __version__,
            "about": {"path": about.path, "host": about.host, "kernel": about.kernel, "options": about.options},
            "began": str(self._timeline.begin),
            "totals": {
                "packets": summary.packets + summary.unexplained, "incomplete": summary.incomplete, "events": summary.events,
                "lost": summary.lost, "seconds": round(summary.seconds, 3), "outcomes": summary.outcomes,
                "unexplained": summary.unexplained,
            },
            "causes": [{"cause": name, "good": good, "count": count} for name, (good, count) in self._causes.items()],
            "counters": [
                {"netns": d.netns, "counter": d.counter, "counted": d.counted, "explained": d.explained}
                for d in summary.differences
            ],
            "lost": [[probe, why, count] for (probe, why), count in sorted(about.lost.items())],
            "facts": [[f.subject, f.text] for f in about.results if f.state != "ok"],
            "findings": self._findings,
            "timeline": self._timeline.to_object(),
            "tables": [_table(t) for one in self._statistics for t in one.tables()],
            "traffic": self._packets.to_object(),
        }  # fmt: skip
        with self._file as file:
            file.write(page(mapped(data, escaped)))


def page(data: dict[str, Any]) -> str:
    """The page with this data. All its texts must be escaped already."""
    parts = {name: (PARTS / name).read_text(encoding="utf-8") for name in ("page.html", "style.css")}
    script = "\n".join((PARTS / f"{name}.js").read_text(encoding="utf-8") for name in SCRIPTS)
    inserted = {
        "@HASH@": b64encode(sha256(script.encode()).digest()).decode(),
        "@STYLE@": parts["style.css"],
        "@SCRIPT@": script,
        # The data stands in a script element, which only its end tag could end.
        "@DATA@": json_line(data).replace("<", "\\u003c"),
    }
    text = parts["page.html"]
    for mark, part in inserted.items():
        before, _, after = text.partition(mark)
        text = before + part + after
    return text


def _table(table: ResultTable) -> dict[str, Any]:
    """A table; durations are in ns, and `durations` has the numbers of their columns."""
    units = [next((ns for ending, ns in _UNITS.items() if column.endswith(ending)), 0.0) for column in table.columns]
    return {
        "title": table.title,
        "columns": [c.removesuffix(" us") if unit else c for c, unit in zip(table.columns, units, strict=True)],
        "durations": [at for at, unit in enumerate(units) if unit],
        "rows": [[value * unit if unit else value for value, unit in zip(row, units, strict=True)] for row in table.rows],
        "bar": table.columns.index(table.bar) if table.bar else -1,
    }


EXPORT = Html
