# SPDX-License-Identifier: Apache-2.0
"""The commands stats, findings, diff, query and export. Imported only when one of them runs."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tracer import export
from tracer.analysis import diff as differing
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
from tracer.model.handshake import HandshakeVerdict
from tracer.model.packet import Packet
from tracer.model.summary import RunSummary
from tracer.pipeline.shutdown import StopRequest, reading
from tracer.render.text import TextOutput


def check_damage(capture: CaptureReader) -> None:
    """Reports on stderr that a capture is cut short. Raises DamagedCapture when a part of it cannot be read."""
    if capture.ended() is None:
        sys.stderr.write(runner.CUT_SHORT + "\n")
    runner.check_complete(capture)


def replay(
    capture: CaptureReader,
    what: str,
    request: ReplayRequest,
    on_packet: Callable[[Packet], None],
    stop: StopRequest,
    on_syn: Callable[[HandshakeVerdict], None] = lambda verdict: None,
) -> tuple[RunSummary, PacketCollector]:
    """Replays a whole capture, with a progress bar on a terminal.

    Args:
        capture: The capture.
        what: Label of the progress bar.
        request: Filters and options of the replay.
        on_packet: Called for each packet.
        stop: Whether the user wants to stop.
        on_syn: Called for each verdict on a SYN, after its packet.

    Raises:
        KeyboardInterrupt: The user stopped the replay. No result may rest on a part of a capture.
    """
    output = PacketCollector(on_packet, on_syn)
    with runner.bar(capture, what) as progress:
        totals = runner.replay(capture, output, request, stop, progress)
    if stop.is_requested:
        raise KeyboardInterrupt
    return totals, output


def stats(paths: Sequence[str], names: Sequence[str], form: str, request: ReplayRequest) -> int:
    """`stats FILE`. Returns the exit status."""
    statistics_made = [statistics.make(name) for name in names or statistics.in_order()]
    with reading(paths) as stop, opened(paths) as capture:

        def feed_all(packet: Packet) -> None:
            for one in statistics_made:
                one.feed(packet)

        totals, output = replay(capture, f"counting {capture.path}", request, feed_all, stop)
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
        totals, _ = replay(capture, f"reading {capture.path}", request, lambda packet: None, stop)
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
            replay(capture, f"reading {capture.path}", request, side.feed, stop)
            sides.append(side)
        names = ("A", "B") if Path(one).name == Path(other).name else (Path(one).name, Path(other).name)
        tables = list(differing.tables(sides[0], sides[1], names))
        show(tables, sys.stdout, form)
        for capture in captures:
            check_damage(capture)
    return int(any(table.rows for table in tables))


def query(paths: Sequence[str], sql: str, form: str, request: ReplayRequest) -> int:
    """`query FILE SQL`. Returns the exit status."""
    with reading(paths) as stop, tempfile.TemporaryDirectory(prefix="k8snet-trace-") as scratch, opened(paths) as capture:
        target = Path(scratch) / "tables"
        _export(capture, "parquet", target, request, None, stop)
        show([asking.ask(target, sql, stop)], sys.stdout, form)
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
    return export.CaptureInfo(file_name, redact(name), release, redact(options_text), began, results)


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
    totals, output = replay(
        capture,
        f"writing {target.name}",
        request,
        (lambda packet: exporter.packet(redaction.packet(packet))) if redaction else exporter.packet,
        stop,
        (lambda verdict: exporter.syn(redaction.syn(verdict))) if redaction else exporter.syn,
    )
    info.lost.update(output.losses)
    for finding in totals.findings:
        exporter.finding(redaction.finding(finding) if redaction else finding)
    exporter.close(redaction.summary(totals) if redaction else totals)
