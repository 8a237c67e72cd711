# SPDX-License-Identifier: Apache-2.0
"""The commands stats, findings, diff, query and export. Imported only when one of them runs."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from tracer import export
from tracer.analysis import diff as differing
from tracer.analysis import formats, queries
from tracer.analysis import sql as asking
from tracer.analysis import stats as statistics
from tracer.analysis.collector import PacketCollector
from tracer.analysis.result_table import ResultTable, show
from tracer.capture.redact.pseudonyms import Pseudonymizer
from tracer.capture.replay import runner
from tracer.capture.replay.capture_reader import CaptureReader
from tracer.capture.replay.file_series import opened
from tracer.capture.replay.runner import ReplayRequest
from tracer.errors import DamagedCapture, OutputNotWritten
from tracer.model.loss import Loss
from tracer.model.packet import Packet
from tracer.model.summary import RunSummary
from tracer.pipeline.shutdown import StopRequest, reading
from tracer.render.base import LostEvents
from tracer.render.text import TextOutput


def check_damage(capture: CaptureReader) -> None:
    """Reports on stderr that a capture is cut short. Raises DamagedCapture when a part of it cannot be read."""
    if capture.ended() is None:
        sys.stderr.write(runner.CUT_SHORT + "\n")
    runner.check_complete(capture)


def replay(capture: CaptureReader, what: str, request: ReplayRequest, output: PacketCollector, stop: StopRequest) -> RunSummary:
    """Replays a whole capture by packet, also one of a run that printed timelines. A terminal shows how much was read.

    Args:
        capture: The capture.
        what: First words of that line on the terminal.
        request: Filters and options of the replay.
        output: Gets packets, SYN verdicts and losses.
        stop: Whether the user wants to stop.
        on_syn: Called for each verdict on a SYN, after its packet.

    Raises:
        KeyboardInterrupt: The user stopped the replay. No result may rest on a part of a capture.
    """
    with runner.bar(capture, what, [output]) as progress:
        totals = runner.replay(capture, output, replace(request, is_by_packet=True), stop, progress)
    if stop.is_requested:
        raise KeyboardInterrupt
    return totals


def stats(paths: Sequence[str], names: Sequence[str], form: str, request: ReplayRequest) -> int:
    """`stats FILE`. Returns the exit status."""
    statistics_made = [statistics.make(name) for name in names or statistics.in_order()]
    with reading(paths) as stop, opened(paths) as capture:

        def feed_all(packet: Packet) -> None:
            for one in statistics_made:
                one.feed(packet)

        output = PacketCollector(feed_all)
        totals = replay(capture, f"counting {capture.path}", request, output, stop)
        tables = [table for one in statistics_made for table in one.tables()]
        if totals.causes and (not names or "syns" in names):
            causes = sorted(totals.causes.items(), key=lambda item: (-item[1], item[0]))
            tables.append(ResultTable("SYNs by cause", ("SYNs", "cause"), [(count, cause) for cause, count in causes]))
        if output.losses:
            rows = [(count, probe, why) for (probe, why), count in sorted(output.losses.items())]
            tables.append(ResultTable("Lost", ("events", "probe", "why"), rows))
        show(tables, sys.stdout, form)
        check_damage(capture)
    return 0


def findings(paths: Sequence[str], form: str, request: ReplayRequest) -> int:
    """`findings FILE`. Returns 10 when a finding is certain, else 0."""
    from tracer.render.json import JsonOutput

    with reading(paths) as stop, opened(paths) as capture:
        totals = replay(capture, f"reading {capture.path}", request, PacketCollector(lambda packet: None), stop)
        if form == "json":
            for finding in totals.findings:
                JsonOutput().finding(finding)
        else:
            output = TextOutput()
            for finding in totals.findings:
                output.finding(finding)
            count = len(totals.findings)
            output.put(f"{count or 'No'} finding{'s' * (count != 1)} in {totals.packets} packets.")
            if totals.drops_without_finding:
                drops = totals.drops_without_finding
                output.put(f"{drops} dropped packet{'s have' if drops > 1 else ' has'} no finding.")
        check_damage(capture)
    return 10 if any(f.certain for f in totals.findings) else 0


def diff(one: str, other: str, form: str, request: ReplayRequest) -> int:
    """`diff A B`. Returns 0 when nothing differs, 1 when something does."""
    sides = []
    with reading((one, other)) as stop, ExitStack() as stack:
        captures = [stack.enter_context(CaptureReader(path)) for path in (one, other)]
        for capture in captures:
            side = differing.CaptureProfile(differing.rules_of(capture))
            replay(capture, f"reading {capture.path}", request, PacketCollector(side.feed), stop)
            sides.append(side)
        names = ("A", "B") if Path(one).name == Path(other).name else (Path(one).name, Path(other).name)
        tables = list(differing.tables(sides[0], sides[1], names))
        show(tables, sys.stdout, form)
        for capture in captures:
            check_damage(capture)
    return int(any(table.rows for table in tables))


def query(paths: Sequence[str], asked: str, parameters: Sequence[str], form: str, request: ReplayRequest) -> int:
    """`query FILE SQL` and `query FILE NAME`. Returns the exit status.

    Args:
        paths: The files of the capture.
        asked: SQL, or the name of a saved query.
        parameters: Values of a saved query's parameters, NAME=VALUE each.
        form: Name of the output format.
        request: Filters and options of the replay.
    """
    write, sql = formats.find(form), queries.sql_of(asked, parameters)
    with reading(paths) as stop, tempfile.TemporaryDirectory(prefix="k8snet-trace-") as scratch, opened(paths) as capture:
        target = Path(scratch) / "tables"
        _export(capture, "parquet", target, request, None, stop)
        result = asking.ask(target, sql, stop)
        write(result, sys.stdout)
        sys.stdout.flush()
        if result.is_cut:
            sys.stderr.write(f"Only the first {asking.MOST_ROWS} rows are shown; the export to Parquet has all.\n")
        check_damage(capture)
    return 0


def export_capture(
    paths: Sequence[str], form: str, target: str, request: ReplayRequest, redact: bool, options: export.ExportOptions
) -> int:
    """`export FILE --to FORMAT TARGET`. Returns the exit status. Raises BadOption for an option that another format has."""
    export.check_options(form, options)
    path = Path(target)
    if os.path.lexists(path):
        raise OutputNotWritten(f"{target} already exists.")
    with reading(paths) as stop, opened(paths) as capture:
        try:
            _export(capture, form, path, request, Pseudonymizer() if redact else None, stop, options)
        except OSError as e:
            raise OutputNotWritten(f"{target} cannot be written: {e.strerror or e}.") from e
        except BaseException:
            # An incomplete file must not look complete.
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
            raise
        try:
            check_damage(capture)
        except DamagedCapture as e:
            raise DamagedCapture(str(e).replace("is above", f"is in {target}")) from None
    return 0


def capture_info(capture: CaptureReader, redaction: Pseudonymizer | None) -> export.CaptureInfo:
    """Returns the capture's information about its run, with names replaced if `redaction` is given."""
    clock, host = (capture.meta.get(name) for name in ("clock", "host"))
    name = str(host.get("name", "")) if isinstance(host, dict) else ""
    began = clock.get("began") if isinstance(clock, dict) else 0
    options_text = str(runner.options(capture).get("said", ""))
    redact: Any = (redaction or str) if redaction else str
    results = () if redaction else tuple(runner.facts(capture, True))
    began = began if isinstance(began, int) else 0
    file_name, release = os.path.basename(capture.path), runner.release(capture)
    offset = clock.get("offset") if isinstance(clock, dict) else 0
    offset = offset if isinstance(offset, int) else 0
    return export.CaptureInfo(file_name, redact(name), release, redact(options_text), began, results, offset)


def _export(
    capture: CaptureReader,
    form: str,
    target: Path,
    request: ReplayRequest,
    redaction: Pseudonymizer | None,
    stop: StopRequest,
    options: export.ExportOptions = export.ExportOptions(),  # noqa: B008
) -> None:
    info = capture_info(capture, redaction)
    exporter = export.find(form)(target, info, options)
    totals = replay(
        capture, f"writing {target.name}", replace(request, numbers_connections=True), _feed(exporter, redaction, info), stop
    )
    for finding in totals.findings:
        exporter.finding(redaction.finding(finding) if redaction else finding)
    exporter.close(redaction.summary(totals) if redaction else totals)


def _feed(exporter: export.Export, redaction: Pseudonymizer | None, info: export.CaptureInfo) -> PacketCollector:
    """An output that passes everything to an export, with names replaced if `redaction` is given."""

    def feed_loss(loss: LostEvents) -> None:
        info.lost[loss.probe, loss.why] = info.lost.get((loss.probe, loss.why), 0) + loss.count
        if isinstance(loss, Loss):
            exporter.loss(loss)

    if not redaction:
        return PacketCollector(exporter.packet, exporter.syn, exporter.connection, feed_loss)
    return PacketCollector(
        lambda packet: exporter.packet(redaction.packet(packet)),
        lambda verdict: exporter.syn(redaction.syn(verdict)),
        lambda timeline: exporter.connection(redaction.redact(timeline)),
        feed_loss,
    )
