# SPDX-License-Identifier: Apache-2.0
"""The JSON lines export: the output of `-o json` in a file."""

from __future__ import annotations

import io
from pathlib import Path

from tracer.export import CaptureInfo, Export, ExportOptions
from tracer.model.finding import Finding
from tracer.model.packet import Packet
from tracer.model.summary import RunSummary
from tracer.render.json import JsonOutput
from tracer.util.new_file import fresh

DESCRIPTION = "one JSON object a line, as -o json"


class JsonLines(Export):
    """Writes the lines. docs/json.md defines them."""

    def __init__(self, target: Path, about: CaptureInfo, options: ExportOptions = ExportOptions()) -> None:  # noqa: B008
        self._file = open(fresh(target), "w", encoding="utf-8")  # noqa: SIM115  # closed by close()
        self._json = JsonOutput(self._file, io.StringIO())
        self._json.begin(about.results, about.options, about.kernel)

    def packet(self, packet: Packet) -> None:
        self._json.packet(packet)

    def finding(self, finding: Finding) -> None:
        self._json.finding(finding)

    def close(self, summary: RunSummary) -> None:
        self._json.summary(summary)
        self._file.close()


EXPORT = JsonLines
