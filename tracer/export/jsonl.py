# SPDX-License-Identifier: Apache-2.0
"""JSON lines: what `-o json` prints, in a file."""

from __future__ import annotations

import io
from pathlib import Path

from tracer.export import About
from tracer.model.finding import Finding
from tracer.model.packet import Packet
from tracer.model.summary import Totals
from tracer.render.json import Json
from tracer.util.new_file import fresh

TELLS = "one JSON object a line, as -o json"


class JsonLines:
    """docs/json.md says what the lines are."""

    def __init__(self, target: Path, about: About) -> None:
        self._file = open(fresh(target), "w", encoding="utf-8")  # noqa: SIM115  # closed by close()
        self._json = Json(self._file, io.StringIO())
        self._json.begin(about.facts, about.options, about.kernel)

    def packet(self, packet: Packet) -> None:
        self._json.packet(packet)

    def finding(self, finding: Finding) -> None:
        self._json.finding(finding)

    def close(self, totals: Totals) -> None:
        self._json.summary(totals)
        self._file.close()


EXPORT = JsonLines
