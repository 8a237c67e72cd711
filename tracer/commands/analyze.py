# SPDX-License-Identifier: Apache-2.0
"""stats, findings, diff, query and export, behind the command line. Imported only when one runs."""

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
from tracer.model.packet import Packet
from tracer.model.summary import RunSummary
from tracer.pipeline.shutdown import StopRequest, reading
from tracer.render.text import TextOutput


def told(capture: CaptureReader) -> None:
    """Says on stderr what of a capture is missing; raises DamagedCapture when it is damage."""
    if capture.ended() is None:
        sys.stderr.write(runner.CUT_SHORT + "\n")
    runner.check_complete(capture)


def run(
    capture: CaptureReader, what: str, asked: ReplayRequest, take: Callable[[Packet], None], stop: StopRequest
) -> tuple[RunSummary, PacketCollector]:
    """Reads a whole capture, with a bar where somebody watches. Raises KeyboardInterrupt when it was asked to end: nothing is
    concluded from a part."""
    output = PacketCollector(take)
    with runner.bar(capture, what) as progress:
        totals = runner.replay(capture, output, asked, stop, progress)
    if stop.is_requested:
        raise KeyboardInterrupt
    return totals, output


def stats(paths: Sequence[str], names: Sequence[str], form: str, asked: ReplayRequest) -> int:
    """`stats FILE`. Returns the exit status."""
    made = [statistics.make(name) for name in names or statistics.in_order()]
    with reading(paths) as stop, opened(paths) as capture:

        def take(packet: Packet) -> None:
            for one in made:
                one.feed(packet)

        totals, output = run(capture, f"counting {capture.path}", asked, take, stop)
        tables = [table for one in made for table in one.tables()]
        if totals.causes and (not names or "syns" in names):
            causes = sorted(totals.causes.items(), key=lambda item: (-item[1], item[0]))
            tables.append(ResultTable("What became of SYNs", ("SYNs", "cause"), [(count, cause) for cause, count in causes]))
        if output.losses:
            rows = [(count, probe, why) for (probe, why), count in sorted(output.losses.items())]
            tables.append(ResultTable("Lost", ("events", "probe", "why"), rows))
        show(tables, sys.stdout, form)
        told(capture)
    return 0


def findings(paths: Sequence[str], form: str, asked: ReplayRequest) -> int:
    """`findings FILE`. Returns 0, or 10 when there is a certain one."""
    from tracer.render.json import JsonOutput

    with reading(paths) as stop, opened(paths) as capture:
        totals, _ = run(capture, f"reading {capture.path}", asked, lambda packet: None, stop)
        if form == "json":
            for finding in totals.findings:
                JsonOutput().finding(finding)
        else:
            output = TextOutput()
            for finding in totals.findings:
                output.finding(finding)
            count = len(totals.findings)
            output.put(f"{count or 'No'} finding{'s' * (count != 1)} in {totals.packets} packets.")
        told(capture)
    return 10 if any(f.certain for f in totals.findings) else 0


def diff(one: str, other: str, form: str, asked: ReplayRequest) -> int:
    """`diff A B`. Returns 0 when nothing differs, 1 when something does."""
    sides = []
    with reading((one, other)) as stop, ExitStack() as stack:
        captures = [stack.enter_context(CaptureReader(path)) for path in (one, other)]
        for capture in captures:
            side = differing.CaptureProfile(differing.rules_of(capture))
            run(capture, f"reading {capture.path}", asked, side.feed, stop)
            sides.append(side)
        names = ("A", "B") if Path(one).name == Path(other).name else (Path(one).name, Path(other).name)
        tables = list(differing.tables(sides[0], sides[1], names))
        show(tables, sys.stdout, form)
        for capture in captures:
            told(capture)
    return int(any(table.rows for table in tables))


def query(paths: Sequence[str], sql: str, form: str, asked: ReplayRequest) -> int:
    """`query FILE SQL`. Returns the exit status."""
    with reading(paths) as stop, tempfile.TemporaryDirectory(prefix="k8snet-trace-") as scratch, opened(paths) as capture:
        target = Path(scratch) / "tables"
        _export(capture, "parquet", target, asked, None, stop)
        show([asking.ask(target, sql, stop)], sys.stdout, form)
        told(capture)
    return 0


def to(paths: Sequence[str], form: str, target: str, asked: ReplayRequest, redact: bool) -> int:
    """`export FILE --to FORMAT TARGET`. Returns the exit status."""
    goal = Path(target)
    if os.path.lexists(goal):
        raise OutputNotWritten(f"{target} is there already.")
    with reading(paths) as stop, opened(paths) as capture:
        try:
            _export(capture, form, goal, asked, Pseudonymizer() if redact else None, stop)
        except OSError as e:
            raise OutputNotWritten(f"{target} cannot be written: {e.strerror or e}.") from e
        except BaseException:
            # What is half done must not look done.
            if goal.is_dir():
                shutil.rmtree(goal, ignore_errors=True)
            else:
                goal.unlink(missing_ok=True)
            raise
        try:
            told(capture)
        except DamagedCapture as e:
            raise DamagedCapture(str(e).replace("is above", f"is in {target}")) from None
    return 0


def about(capture: CaptureReader, redaction: Pseudonymizer | None) -> export.CaptureInfo:
    """What the capture says of its run."""
    clock, host = (capture.meta.get(name) for name in ("clock", "host"))
    name = str(host.get("name", "")) if isinstance(host, dict) else ""
    began = clock.get("began") if isinstance(clock, dict) else 0
    said = str(runner.options(capture).get("said", ""))
    words: Any = (redaction or str) if redaction else str
    facts = () if redaction else tuple(runner.facts(capture, True))
    began = began if isinstance(began, int) else 0
    return export.CaptureInfo(os.path.basename(capture.path), words(name), runner.release(capture), words(said), began, facts)


def _export(
    capture: CaptureReader, form: str, target: Path, asked: ReplayRequest, redaction: Pseudonymizer | None, stop: StopRequest
) -> None:
    of = about(capture, redaction)
    made = export.find(form)(target, of)
    totals, output = run(
        capture,
        f"writing {target.name}",
        asked,
        (lambda packet: made.packet(redaction.packet(packet))) if redaction else made.packet,
        stop,
    )
    of.lost.update(output.losses)
    for finding in totals.findings:
        made.finding(redaction.finding(finding) if redaction else finding)
    made.close(redaction.summary(totals) if redaction else totals)
