# SPDX-License-Identifier: Apache-2.0
"""The commands on a store: store, compact, recall, and `query` with the URL of one. Imported only when one of them runs."""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tracer.analysis import formats, queries
from tracer.analysis import sql as asking
from tracer.capture.replay import runner
from tracer.capture.replay.capture_reader import CaptureReader
from tracer.capture.replay.file_series import opened
from tracer.capture.replay.runner import ReplayRequest
from tracer.commands import read_nodes
from tracer.commands.analyze import capture_info, check_damage
from tracer.errors import BadOption, OutputNotWritten
from tracer.pipeline.shutdown import StopRequest, reading
from tracer.render.text import TextOutput
from tracer.store import compaction, engines, recollection
from tracer.store.bucket import Bucket
from tracer.store.recollection import Row, StoredPacket
from tracer.store.selected_files import SelectedFiles, StoreSelection, select
from tracer.store.store_output import StoreOutput
from tracer.store.store_writer import StoreWriter
from tracer.util.escape import json_line

UPLOAD_SECONDS = 300.0
"""Longest time that the end of `store` waits for the storage, s."""


def store(paths: Sequence[str], url: str, node: str, request: ReplayRequest, selected_by: str) -> int:
    """`store FILE... URL`: brings captures to a store. Returns the exit status.

    Args:
        paths: The captures, of one or several nodes.
        url: The store.
        node: Name of their node; "" = as in the captures.
        request: Filters of the replay.
        selected_by: The filters as text: other filters give other files.

    Raises:
        BadOption: The captures are of several nodes, and --node names one.
        OutputNotWritten: The storage did not take everything.
    """
    bucket = Bucket(url)
    by_node: Mapping[str, Sequence[str]] = read_nodes.by_node(paths) if len(paths) > 1 else {"": paths}
    if node and len(by_node) > 1:
        raise BadOption(f"--node is for captures of one node; these are of {', '.join(by_node)}.")
    with reading(paths) as stop:
        for each in by_node.values():
            _store_one(each, bucket, node, request, selected_by, stop)
    return 0


def _store_one(
    paths: Sequence[str], bucket: Bucket, node: str, request: ReplayRequest, selected_by: str, stop: StopRequest
) -> None:
    from dataclasses import replace

    with tempfile.TemporaryDirectory(prefix="k8snet-trace-") as scratch, opened(paths) as capture:
        info = capture_info(capture, None)
        name = node or info.host or "unknown"
        writer = StoreWriter(bucket, Path(scratch), name, _run_name(capture, name, selected_by), 1 << 40, is_timed=False)
        output = StoreOutput(writer, bucket.url, end_seconds=UPLOAD_SECONDS, has_final_findings=True)
        request = replace(request, is_by_packet=True, numbers_connections=True)
        with runner.bar(capture, f"storing {capture.path}", [output]) as progress:
            totals = runner.replay(capture, output, request, stop, progress)
        if stop.is_requested:
            raise KeyboardInterrupt
        output.summary(totals)
        if writer.uploader.problem or writer.lost:
            why = writer.uploader.problem or f"{sum(writer.lost.values())} rows were lost."
            raise OutputNotWritten(f"{bucket.url} does not have all of {capture.path}: {why} Store it again.")
        rows, packets = sum(writer.accepted.values()), writer.accepted["packets"]
        print(f"{name}: {packets} packets, {rows} rows in {writer.uploader.uploaded} files, {bucket.url}")
        check_damage(capture)


def _run_name(capture: CaptureReader, node: str, selected_by: str) -> str:
    """The name of the run of a capture: the same for each import, which then replaces the files of the one before."""
    clock = capture.meta.get("clock")
    began = clock.get("began") if isinstance(clock, dict) else 0
    began = began if isinstance(began, int) and 0 < began < 1 << 62 else 0
    key = json.dumps([node, selected_by, capture.meta], sort_keys=True, default=str)
    digest = hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()[:12]
    return f"{datetime.fromtimestamp(began // 10**9, UTC):%Y%m%dT%H%M%S}-c{digest}"


def query(
    url: str, asked: str, parameters: Sequence[str], form: str, selection: StoreSelection, engine: str
) -> int:  # fmt: skip
    """`query URL SQL` and `query URL NAME`. Returns the exit status.

    Args:
        url: The store.
        asked: SQL, or the name of a saved query.
        parameters: Values of a saved query's parameters, NAME=VALUE each.
        form: Name of the output format.
        selection: The times and nodes that are wanted.
        engine: Name of the engine.
    """
    write, sql, engine_of = formats.find(form), queries.sql_of(asked, parameters), engines.find(engine)
    bucket = Bucket(url)
    with reading((url,)) as stop, tempfile.TemporaryDirectory(prefix="k8snet-trace-") as scratch:
        files = select(bucket, selection)
        _note_missing(files, selection)
        with engine_of(bucket, files, selection, Path(scratch), stop) as ask:
            result = ask(sql)
    write(result, sys.stdout)
    sys.stdout.flush()
    if result.is_cut:
        sys.stderr.write(f"Only the first {asking.MOST_ROWS} rows are shown.\n")
    return 0


def _note_missing(files: SelectedFiles, selection: StoreSelection) -> None:
    """Says on stderr that nodes or everything that was asked for is not in the store: no rows prove nothing then."""
    missing = [node for node in selection.nodes if node not in files.nodes]
    if missing:
        sys.stderr.write(f"The store has nothing of {', '.join(missing)} in this time.\n")
    elif not files.count:
        sys.stderr.write("The store has nothing of this time.\n")


def compact(url: str, hours: int, iceberg: str = "") -> int:
    """`compact URL`. Returns the exit status. iceberg: CATALOG.NAMESPACE of Iceberg; "" = none."""
    from tracer.store.iceberg import open_catalog, publish

    bucket, now = Bucket(url), time.time_ns() // 1000
    target = open_catalog(iceberg) if iceberg else None
    done = compaction.compact(bucket, now, hours)
    print(
        f"{done.before} files of {done.directories} directories became {done.after}: "
        f"{done.bytes_before:,} bytes became {done.bytes_after:,}."
    )
    if target:
        published = publish(bucket, *target, now, hours)
        print(
            f"{iceberg}: {published.replaced} parts of an hour written, {published.rows} rows; {published.same} were there"
            f" already; {published.conflicts} commits of others came first."
        )
    return 0


def recall(
    url: str, name: str, key: tuple[str, str, int] | None, selection: StoreSelection, shows_rules: bool, form: str
) -> int:  # fmt: skip
    """`recall URL`: findings or one packet as they were, with the rules in force then. Returns the exit status.

    Args:
        url: The store.
        name: Name of a finding; "" = all.
        key: Node, run and number of a packet; None = findings are shown.
        selection: The times and nodes that are wanted.
        shows_rules: All rules of the tables are shown, not only the chains of the packet.
        form: "text" or "json".

    Raises:
        BadOption: There is no such packet.
    """
    bucket = Bucket(url)
    if key:
        node, run, number = key
        at = _time_of(bucket, selection, key)
        found = recollection.packet(bucket, node, run, number, at) if at else None
        if found is None:
            raise BadOption(f"{bucket.url} has no packet {number} of run {run} of {node} in this time.")
        _show(None, found, shows_rules, form)
        return 0
    findings = recollection.findings(bucket, selection, name)
    for finding in findings:
        _show(finding, recollection.packet_of(bucket, finding), shows_rules, form)
    if not findings:
        sys.stderr.write("The store has no such finding in this time.\n")
    return 0


def _time_of(bucket: Bucket, selection: StoreSelection, key: tuple[str, str, int]) -> int:
    """Time of a packet, us since the epoch; 0 = it is not there."""
    node, run, number = key
    where = StoreSelection(selection.since, selection.until, (node,))
    return recollection.time_of(bucket, where, run, number)


def _show(finding: Row | None, stored: StoredPacket | None, shows_rules: bool, form: str) -> None:
    if form == "json":
        rule_rows = [vars(each) for each in stored.rules] if stored else []
        hits = [{k: v for k, v in hit.items() if k != "event_at"} for hit in stored.hits] if stored else []
        print(json_line({"type": "recollection", "finding": _plain(finding), "rule_hits": hits, "rules": rule_rows}))
        if stored:
            from tracer.render.json import JsonOutput

            JsonOutput().packet(stored.packet)
        return
    output = TextOutput(verbose=shows_rules)
    if finding:
        certainty = "FINDING" if finding["is_certain"] else "PERHAPS"
        output.put(f"{certainty} {finding['finding']} on {finding['node']}, {finding['packets']} packets: {finding['cause']}")
        for line in (finding["evidence"] or "").splitlines():
            output.put(f"  {line}")
        output.put("")
    if stored is None:
        output.put("The store has no packet of it." if finding and finding["packet"] else "It was found without a packet.")
        return
    output.put(f"packet {stored.packet.number} of run {stored.run} on {stored.node}:")
    output.packet(stored.packet)
    for rules in stored.rules:
        output.put(
            f"rules then in force: {rules.family} {rules.table} in {rules.netns}, {rules.rules} rules, "
            f"generation {rules.generation}, digest {rules.ruleset}"
        )
        if shows_rules:
            output.put(*(f"  {line}" for line in rules.text.splitlines()))
    if stored.rules and not shows_rules:
        output.put("--rules prints them all.")
    if not stored.rules:
        output.put("No rule acted on it, or the rules were not read.")


def _plain(row: Row | None) -> dict[str, Any] | None:
    return {k: v if isinstance(v, int | str | bool | None) else v.isoformat() for k, v in row.items()} if row else None
