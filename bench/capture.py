# SPDX-License-Identifier: Apache-2.0
"""Recording and reading captures: rate, size and memory, on events multiplied from a recorded capture.

    python -m bench.capture CAPTURE [--events 10000000] [--keep FILE]

CAPTURE's batches are written repeatedly through the real record buffer and writer, each time with later times and other packet
numbers, as fast as the writer takes them; then the file is read without and with explaining. Each step runs in a separate
process, so that its memory is measured alone. Prints one line of JSON per step.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tracer.capture.format import record_layout
from tracer.capture.format.schema import Record
from tracer.capture.record.buffer import RecordBuffer
from tracer.capture.record.capture_files import CaptureFiles, RotationLimits
from tracer.capture.record.writer import CaptureWriter
from tracer.capture.replay import runner
from tracer.capture.replay.capture_reader import CaptureReader
from tracer.capture.replay.runner import ReplayRequest
from tracer.events.record import SLOT, Kind
from tracer.model.summary import RunSummary
from tracer.packets.open_packet import OpenPacket
from tracer.packets.path_signature import PathSignature
from tracer.packets.path_templates import PathTemplates
from tracer.packets.shared_packet import SharedPacket
from tracer.pipeline.shutdown import StopRequest

Slots = npt.NDArray[np.uint8]
TIME, PACKET, KIND = 8, 16, 8 + record_layout.field_offset(record_layout.RECORDS["event"], "kind")
"""Their offsets in the first slot of an event, bytes."""
TURNS_AHEAD = 16
"""MiB that may wait in the writer: events produced without a limit would only measure how they are dropped."""


def later(slots: Slots, by: int) -> Slots:
    """The same events, `by` ns later, of other packets. Events about rulesets are left out: rules do not change."""
    lengths = slots[:, :4].view("<u4").ravel()
    begins = lengths != 0
    out = slots.copy()
    first = out[begins]
    for place, add in ((TIME, by), (PACKET, by << 8)):
        first[:, place : place + 8] = (first[:, place : place + 8].copy().view("<u8") + np.uint64(add)).view(np.uint8)
    out[begins] = first
    rulesets = begins & (slots[:, KIND] == int(Kind.EVENT_RULESET)) & (lengths == SLOT - 8)
    kept: Slots = out[~rulesets]
    return kept


def multiplied(capture: CaptureReader, events: int) -> Iterator[tuple[int, Slots]]:
    """(time, slots) of batches, until `events` events were made. Needs a capture with at least one event."""
    batches = list(capture.chunks())
    began, ended = batches[0].batches[0][0], batches[-1].batches[-1][0]
    length, made, rounds = ended - began + 1_000_000_000, 0, 0
    while made < events:
        for batch in batches:
            at = 0
            for now, count, _ in batch.batches:
                slots = batch.slots[at : at + count]
                at += count
                slots = later(slots, rounds * length) if rounds else slots
                made += record_layout.count(slots)
                yield now + rounds * length, slots
        rounds += 1


def record(source: Path, target: Path, events: int) -> dict[str, Any]:
    """Writes the capture to measure; all records of the source come first in it."""
    with CaptureReader(str(source)) as capture:
        files, buffer = CaptureFiles(target, RotationLimits()), RecordBuffer()
        files.describe({k: v for k, v in capture.meta.items() if k != "parts"})
        for turn, kind, key, body in capture.records():
            if kind != Record.END:
                buffer.add_record(Record(kind), key, body, turn)
        writer = CaptureWriter(files.insert, files.close, 0)
        buffer.start(writer.put)
        slots_made, turns = 0, list[tuple[int, Slots]]()
        busy = 0.0
        for now, slots in multiplied(capture, events):
            turns.append((now, slots))
            slots_made += len(slots)
            if len(turns) == 4096:
                busy += put(buffer, writer, turns)
        busy += put(buffer, writer, turns)
        began = time.monotonic()
        buffer.end(0)
        writer.close()
        busy += time.monotonic() - began
    size = target.stat().st_size
    return {
        "events": writer.events, "lost": writer.lost, "seconds": busy, "rate": writer.events / busy, "bytes": size,
        "bytes_an_event": size / writer.events, "raw_bytes": slots_made * SLOT, "cpu": time.process_time(),
    }  # fmt: skip


def put(buffer: RecordBuffer, writer: CaptureWriter, turns: list[tuple[int, Slots]]) -> float:
    """Seconds until all of these are written or wait in the writer."""
    began = time.monotonic()
    for now, slots in turns:
        buffer.add_batch(now, slots, False)
        while writer._waiting_bytes > TURNS_AHEAD << 20:
            time.sleep(0.001)
    turns.clear()
    return time.monotonic() - began


def scan(path: Path) -> dict[str, Any]:
    """Reads all batches and decodes their events, without explaining."""
    began, events = time.monotonic(), 0
    with CaptureReader(str(path)) as capture:
        for batch in capture.chunks():
            events += len(capture.layout.events(batch.slots))
    seconds = time.monotonic() - began
    return {"events": events, "seconds": seconds, "rate": events / seconds, "cpu": time.process_time()}


def replayed(path: Path, form: str) -> tuple[RunSummary, float, float]:
    """Replays a capture, and discards the output. Returns its summary, and the seconds and CPU seconds of the replay."""
    from tracer import render

    with CaptureReader(str(path)) as capture, open(os.devnull, "w") as nothing:
        output = render.find(form)(nothing, io.StringIO())
        began, cpu = time.monotonic(), time.process_time()
        totals = runner.replay(capture, output, ReplayRequest(), StopRequest())
        return totals, time.monotonic() - began, time.process_time() - cpu


def explain(path: Path, form: str, source: Path) -> dict[str, Any]:
    """Replays the whole capture. The source is replayed before, because a replay imports modules when it first needs them."""
    replayed(source, form)
    shared = 0
    find = PathTemplates.find

    def counted(templates: PathTemplates, identity: int, opened: OpenPacket, signature: PathSignature) -> SharedPacket | None:
        nonlocal shared
        found = find(templates, identity, opened, signature)
        shared += found is not None
        return found

    setattr(PathTemplates, "find", counted)  # noqa: B010 - mypy refuses to assign to a method
    totals, seconds, cpu = replayed(path, form)
    return {
        "events": totals.events, "packets": totals.packets, "seconds": seconds, "rate": totals.events / seconds,
        "cpu": time.process_time(), "replay_cpu": cpu, "first_of_kind": (totals.packets - shared) / totals.packets,
    }  # fmt: skip


STEPS: dict[str, Callable[[Path, Path], dict[str, Any]]] = {
    "scan": lambda path, _: scan(path),
    "text": lambda path, source: explain(path, "text", source),
    "oneline": lambda path, source: explain(path, "oneline", source),
    "json": lambda path, source: explain(path, "json", source),
}


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("capture", type=Path)
    parser.add_argument("--events", type=int, default=10_000_000)
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--steps", default="record,scan,text")
    parser.add_argument("--step", help="for the inner processes")
    given = parser.parse_args()
    if given.step:
        is_record = given.step == "record"
        made = record(given.capture, given.keep, given.events) if is_record else STEPS[given.step](given.keep, given.capture)
        made["memory_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps({"step": given.step, **made}), flush=True)
        return 0
    with tempfile.TemporaryDirectory() as scratch:
        target = given.keep or Path(scratch) / "many.k8st"
        for step in given.steps.split(","):
            words = [str(given.capture), "--events", str(given.events), "--keep", str(target), "--step", step]
            subprocess.run([sys.executable, "-m", "bench.capture", *words], check=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
