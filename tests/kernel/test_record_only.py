# SPDX-License-Identifier: Apache-2.0
"""A recording without explanation, made at the same time as an explained run of the same events, has the same evidence.

The questions of findings and of causes are asked ahead while it is recorded. Its replay must find what the live run found, and
must not state anything that the live run did not state.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from io import StringIO
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt
import pytest

import incidents
from scenes import scene
from tests.kernel.question_scenes import SCENES, QuestionScene
from tests.kernel.recorder import Patient, Recorded, Recorder
from tracer.capture.replay import runner
from tracer.capture.replay.capture_reader import CaptureReader
from tracer.commands.trace import TraceRequest
from tracer.events.record import SLOT
from tracer.kernel.session import Session
from tracer.model.filter import Filter
from tracer.model.finding import Finding
from tracer.model.loss import Loss
from tracer.model.summary import RunSummary
from tracer.render.json import JsonOutput

pytestmark = pytest.mark.thorough

T = TypeVar("T")
START_SECONDS = 120.0
"""Maximum time until both runs have begun, seconds."""
VERDICT_SECONDS = 25.0
"""Maximum time until the explained run has its verdict, seconds; packets wait for rules for ten seconds."""
READ_LATER = ("/proc", "/sys", "netlink")
"""Sources of evidence that is read some time after the packet: its numbers may differ."""


@pytest.fixture(scope="module", autouse=True)
def restored_scene(recorder_session: None) -> Iterator[None]:
    yield
    incidents.down()
    scene.up()


@pytest.fixture(scope="module")
def recorder_session(node: None) -> None:
    """The scene exists before and after the tests of this file."""


class SharedSession:
    """Gives two runs the events and the losses of one session."""

    def __init__(self, session: Session) -> None:
        self.session, self.lock = session, threading.Lock()
        self.branches = [Branch(self) for _ in range(2)]

    def drain(self) -> None:
        with self.lock:
            slots, losses = self.session.drain(), self.session.losses()
            for branch in self.branches:
                branch.slots.put(slots)
                branch.lost.put(losses)


class Branch:
    """A session of one of the two runs. It has all other attributes of the shared session.

    Attributes:
        read: Number of batches that were read.
        waits: Whether the run waits for rules that are being read; called by the run's own thread.
        is_waiting: What `waits` gave when the latest batch was read.
    """

    def __init__(self, shared: SharedSession) -> None:
        self._shared = shared
        self.read, self.is_waiting = 0, False
        self.waits: Callable[[], bool] = lambda: False
        self.slots: SimpleQueue[npt.NDArray[np.uint8]] = SimpleQueue()
        self.lost: SimpleQueue[list[Loss]] = SimpleQueue()

    def drain(self) -> npt.NDArray[np.uint8]:
        self._shared.drain()
        self.read, self.is_waiting = self.read + 1, self.waits()
        return np.concatenate([np.zeros((0, SLOT), np.uint8), *taken(self.slots)])

    def losses(self) -> list[Loss]:
        return [loss for losses in taken(self.lost) for loss in losses]

    def poll_losses(self) -> None:
        with self._shared.lock:
            self._shared.session.poll_losses()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._shared.session, name)


def taken(queue: SimpleQueue[T]) -> list[T]:
    return [queue.get() for _ in range(queue.qsize())]


def has_found(path: Path, each: QuestionScene) -> bool:
    """Whether a run that is not over has printed what the scene must show."""
    lines = [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]
    if each.cause:
        return any(line["type"] == "syn" and line["cause"] == each.cause for line in lines)
    return any(line["type"] == "finding" and line["name"] == each.asks for line in lines)


def eventually(is_done: Callable[[], bool]) -> None:
    """Waits until something is done; at most VERDICT_SECONDS."""
    began = time.monotonic()
    while not is_done() and time.monotonic() - began < VERDICT_SECONDS:
        time.sleep(0.2)


def record_both(recorder: Recorder, each: QuestionScene) -> tuple[Recorded, Recorded]:
    """(explained run, recording without explanation) of the traffic of a scene that is up."""
    shared = SharedSession(recorder.session)
    live_session, beside_session = shared.branches
    started, ended = threading.Barrier(2), threading.Event()
    made: dict[str, Recorded] = {}
    failed: list[Exception] = []

    def traffic() -> None:
        try:
            started.wait(START_SECONDS)
            with each.traffic():
                eventually(lambda: has_found(recorder.directory / "live.json", each))
                # The recording has asked all questions about the events of a batch when it reads the next one. Its rules are
                # read by a thread of their own, and must be read before the scene removes them.
                read = beside_session.read
                eventually(lambda: beside_session.read >= read + 2 and not beside_session.is_waiting)
        finally:
            ended.set()

    def wait() -> None:
        started.wait(START_SECONDS)
        ended.wait()

    def run(name: str, mine: Recorder, work: Callable[[], None], explains: bool) -> None:
        try:
            job = TraceRequest(said=name, record_only=not explains)
            objects = str(incidents.OBJECTS)
            made[name] = mine(name, work, Filter(ports=each.ports), objects, job=job, explains=explains)
        except Exception as e:
            failed.append(e)
            started.abort()

    # Made one after the other: bcc's cache of symbols is not safe for threads.
    first, second = (
        Recorder(recorder.kernel, cast(Session, session), recorder.directory) for session in (live_session, beside_session)
    )
    beside_session.waits = lambda: second.run is not None and second.run.is_waiting_for_rules
    beside = threading.Thread(target=run, args=("recorded", second, wait, False))
    beside.start()
    run("live", first, traffic, True)
    beside.join()
    if failed:
        raise failed[0]
    return made["live"], made["recorded"]


def replayed(path: Path) -> tuple[RunSummary, list[dict[str, Any]]]:
    out = StringIO()
    with CaptureReader(str(path)) as capture:
        summary = runner.replay(capture, JsonOutput(out, StringIO()), runner.ReplayRequest(), Patient())
        runner.check_complete(capture)
    return summary, [json.loads(line) for line in out.getvalue().splitlines()]


def statements(finding: Finding) -> set[tuple[str, str, str]]:
    """(kind, statement, source) of a finding's evidence. Numbers that are read later are left out; a list is taken apart."""
    found = set()
    for proof in finding.proofs:
        if proof.evidence.startswith(READ_LATER) or proof.what == "process":
            found |= {(proof.what, part, proof.evidence) for part in re.sub(r"\d+", "N", proof.text).split(", ")}
        else:
            found.add((proof.what, proof.text, proof.evidence))
    return found


def causes(lines: Iterable[dict[str, Any]]) -> Counter[str]:
    """The causes of SYNs with their texts, without numbers."""
    return Counter(re.sub(r"\d+", "N", f"{line['cause']}: {line['text']}") for line in lines if line["type"] == "syn")


def show(run: str, findings: Iterable[Finding], lines: Iterable[dict[str, Any]]) -> None:
    """Prints what a run found, and its packets in their order, for a failed test."""
    print(*(f"{run}: {finding}" for finding in findings), sep="\n")
    for line in lines:
        if line["type"] == "packet":
            flags, ends = line.get("tcp_flags", line["proto"]), (line["src"], line.get("sport"), line["dst"], line.get("dport"))
            print(run, line["number"], line["time"], flags, *ends, line["verdict"])
            print(*(f"  {hop}" for hop in line["hops"] if "nat" in hop), sep="\n")
        elif line["type"] == "syn":
            print(run, line["time"], line["cause"], line["text"])


@pytest.mark.parametrize("each", SCENES, ids=lambda s: s.name)
def test_the_same_evidence(recorder: Recorder, each: QuestionScene) -> None:
    incidents.OBJECTS.parent.mkdir(parents=True, exist_ok=True)
    incidents.OBJECTS.write_text(json.dumps({"kind": "List", "items": each.up()}))
    live, recorded = record_both(recorder, each)
    summary, lines = replayed(recorded.files[0])
    of_live = [json.loads(line) for line in live.json.read_text().splitlines()]
    show("live", live.summary.findings, of_live)
    show("replayed", summary.findings, lines)
    assert not live.summary.lost and not recorded.summary.lost
    by_key = {(f.name, f.key): f for f in live.summary.findings}
    for finding in summary.findings:
        counterpart = by_key.get((finding.name, finding.key))
        assert counterpart, f"not found live: {finding.cause}"
        assert statements(finding) <= statements(counterpart)
        assert counterpart.certain or not finding.certain
    assert causes(lines) == causes(of_live)
    if each.cause:
        assert any(line["cause"] == each.cause for line in lines if line["type"] == "syn")
    else:
        (found,) = (f for f in summary.findings if f.name == each.asks)
        sources = {(what, source) for what, _, source in statements(found)}
        expected = by_key[found.name, found.key]
        assert sources == {(what, source) for what, _, source in statements(expected)}, "the live run has more evidence"
