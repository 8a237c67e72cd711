# SPDX-License-Identifier: Apache-2.0
"""A run from start to end, on batches made here, and its exit status."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from tests.support.blobs import R, build
from tests.support.builders import NODE, Ends, Trail, hops, swapped
from tests.support.syns import FakeInspector
from tests.support.table_generations import READER_THREAD, new_generations
from tracer.connections.tracker import ConnectionTracker
from tracer.errors import BadOption, CommandNotFound
from tracer.events.record import DTYPE, TCP_FLAGS, EventArray
from tracer.events.table_trace import WATCHED, TableLookup
from tracer.findings import Again, Findings
from tracer.handshakes.analyzer import HandshakeAnalyzer
from tracer.kernel.loss_counters import Loss
from tracer.kernel.session import Session
from tracer.kube.owner_resolver import OwnerResolver
from tracer.kube.selectors import Selectors
from tracer.model.check import CheckResult
from tracer.model.finding import Finding
from tracer.model.kube import Owner
from tracer.model.loss import LEFT_OUT
from tracer.model.packet import Packet
from tracer.model.summary import RunSummary
from tracer.packets.assembler import CHUNK_PACKETS, IDLE_NS, PacketAssembler
from tracer.pipeline.child import start, write_ready
from tracer.pipeline.connection_stage import ConnectionStage
from tracer.pipeline.display_stage import DisplayStage
from tracer.pipeline.exit_status import status
from tracer.pipeline.finding_stage import FindingStage
from tracer.pipeline.live_source import LiveSource
from tracer.pipeline.owner_stage import OwnerStage
from tracer.pipeline.run import Run
from tracer.pipeline.shutdown import StopRequest
from tracer.pipeline.source import Batch, RunLimits
from tracer.pipeline.stage import Stage
from tracer.render.base import LostEvents, Output
from tracer.rules.iptables.save_join import SavedRules
from tracer.rules.iptables.table_reader import TableRequest, TableSnapshot
from tracer.rules.rule_resolver import RuleResolver

ENDS: Ends = ("192.168.56.1", 40812, "192.168.56.10", 30285)


class Written(Output):
    """An output that keeps packets, losses and findings."""

    def __init__(self, at: Callable[[Packet], None] = lambda p: None) -> None:
        super().__init__()
        self.packets: list[Packet] = []
        self.losses: list[LostEvents] = []
        self.findings: list[Finding] = []
        self._at = at

    def begin(self, results: Sequence[CheckResult], options_text: str, release: str = "") -> None: ...

    def packet(self, packet: Packet) -> None:
        self.packets.append(packet)
        self._at(packet)

    def lost(self, loss: LostEvents) -> None:
        super().lost(loss)
        self.losses.append(loss)

    def finding(self, finding: Finding) -> None:
        self.findings.append(finding)

    def summary(self, summary: RunSummary) -> None: ...

    def doctor(self, results: Sequence[CheckResult], status: int) -> None: ...


class FakeSession:
    """Replaces a session: batches, each with its losses; `on_end` is called when there are no more batches."""

    def __init__(self, *batches: EventArray, losses: dict[int, list[Loss]] | None = None) -> None:
        self.batches, self._losses, self.number = list(batches), losses or {}, 0
        self.on_end: Callable[[], object] = lambda: None

    def events(self) -> EventArray:
        self.number += 1
        if not self.batches:
            self.on_end()
        return self.batches.pop(0) if self.batches else np.zeros(0, DTYPE)

    def losses(self) -> list[Loss]:
        return self._losses.get(self.number, [])

    def poll_losses(self) -> None: ...


@pytest.fixture(autouse=True)
def no_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tracer.pipeline.live_source.POLL_SECONDS", 0.001)


def forwarded(packet: int, start: int = 0) -> EventArray:
    t = Trail(ENDS, packet << 8, start or packet * 1_000_000, in_name="eth0").hook("PREROUTING")
    return t.hook("POSTROUTING", in_name="", out_name="cni0").batch


def dropped(packet: int) -> EventArray:
    return Trail(ENDS, packet << 8, packet * 1_000_000).table("INPUT", "filter", verdict="DROP").batch


def make_run(
    given: FakeSession,
    out: Output,
    limits: RunLimits = RunLimits(),  # noqa: B008
    idle_ns: int = 0,
    drops_only: bool = False,
    findings: Findings | None = None,
) -> Run:
    """A run without Kubernetes and connections. The times of its events are long past, so packets are closed at once."""
    summary = RunSummary()
    stages = [DisplayStage(summary, drops_only), *([FindingStage(findings)] if findings else [])]
    assembler = PacketAssembler(hops(), idle_ns=idle_ns)
    return Run(LiveSource(cast(Session, given)), assembler, stages, out, limits, summary)


def trace(
    given: FakeSession,
    limits: RunLimits = RunLimits(),  # noqa: B008
    idle_ns: int = 0,
    drops_only: bool = False,
) -> tuple[Run, Written]:
    """Traces all given batches."""
    out, stop = Written(), StopRequest()
    given.on_end = stop.request
    run = make_run(given, out, limits, idle_ns, drops_only)
    run.run(stop)
    return run, out


def test_everything_is_printed_and_counted() -> None:
    run, out = trace(FakeSession(forwarded(1), dropped(2), np.concatenate([forwarded(3), forwarded(4)])))
    assert [p.outcome for p in out.packets] == ["forwarded", "dropped", "forwarded", "forwarded"]
    assert [p.number for p in out.packets] == [1, 2, 3, 4]
    assert run.summary.outcomes == {"forwarded": 3, "dropped": 1}
    assert (run.summary.packets, run.summary.events, run.summary.lost, run.summary.incomplete) == (4, 7, 0, 0)
    assert run.summary.seconds > 0


def test_packets_open_at_the_end_are_printed_at_the_end() -> None:
    _, out = trace(FakeSession(forwarded(1), forwarded(2)), idle_ns=1 << 62)
    assert [p.outcome for p in out.packets] == ["forwarded", "forwarded"]


def test_drops_only() -> None:
    run, out = trace(FakeSession(forwarded(1), dropped(2), forwarded(3)), drops_only=True)
    assert [p.outcome for p in out.packets] == ["dropped"]
    assert (run.summary.packets, run.summary.events) == (1, 5)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_count(count: int) -> None:
    given = FakeSession(forwarded(1), np.concatenate([forwarded(2), forwarded(3), forwarded(4)]), forwarded(5))
    run, out = trace(given, RunLimits(count=count))
    assert [p.number for p in out.packets] == list(range(1, count + 1))
    assert run.summary.packets == count


def test_count_counts_what_is_printed() -> None:
    _, out = trace(FakeSession(forwarded(1), dropped(2), dropped(3), dropped(4)), RunLimits(count=2), drops_only=True)
    assert [p.number for p in out.packets] == [2, 3]


def test_losses_are_reported_and_make_open_packets_incomplete() -> None:
    loss = Loss("table", 1, 17, "the ring buffer was full")
    run, out = trace(FakeSession(forwarded(1), forwarded(2), losses={2: [loss]}))
    assert out.losses == [loss]
    assert out.lost_by_probe == {"table": 17}
    assert [p.complete for p in out.packets] == [True, False]
    assert (run.summary.lost, run.summary.incomplete) == (17, 1)


MANY = 3 * CHUNK_PACKETS


def many() -> EventArray:
    return np.concatenate([forwarded(number) for number in range(1, MANY + 1)])


@pytest.mark.parametrize("idle_ns", [0, 1 << 62], ids=["closed", "open"])
def test_ctrl_c_leaves_time_to_explain_seen_packets(idle_ns: int) -> None:
    run, out = trace(FakeSession(many()), idle_ns=idle_ns)
    assert [p.number for p in out.packets] == list(range(1, MANY + 1))
    assert run.summary.unexplained == 0


@pytest.mark.parametrize("seconds", [0.0, 60.0], ids=["overdue", "second signal"])
def test_ctrl_c_ends_soon_and_unexplained_packets_are_counted(seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the middle of a batch: the first packets are printed, in order, and the others are counted."""
    monkeypatch.setattr("tracer.pipeline.shutdown.END_SECONDS", seconds)
    stop = StopRequest()

    def end(packet: Packet) -> None:
        if packet.number == CHUNK_PACKETS + 1:
            stop.request()
            stop.end_now() if seconds else time.sleep(0.001)

    out = Written(end)
    run = make_run(FakeSession(many()), out)
    run.run(stop)
    assert [p.number for p in out.packets] == list(range(1, 2 * CHUNK_PACKETS + 1))
    assert (run.summary.packets, run.summary.unexplained) == (2 * CHUNK_PACKETS, MANY - 2 * CHUNK_PACKETS)
    assert status(run.summary, True) == 11, "no conclusion is possible"


def test_packets_left_out_do_not_make_others_incomplete() -> None:
    run, out = trace(
        FakeSession(forwarded(1), forwarded(2), losses={2: [Loss(LEFT_OUT, 0, 5, "the ring buffer was nearly full")]})
    )
    assert [p.complete for p in out.packets] == [True, True]
    assert (run.summary.lost, run.summary.incomplete, out.lost_by_probe) == (5, 0, {LEFT_OUT: 5})


def test_seconds() -> None:
    run = make_run(FakeSession(), Written(), RunLimits(seconds=0.05))
    run.run(StopRequest())
    assert run.summary.seconds >= 0.05


def test_a_run_ends_with_its_command_and_reads_the_remaining_events() -> None:
    given, out = FakeSession(), Written()
    command = start([sys.executable, "-c", ""])
    command.wait()
    given.batches = [forwarded(1)]
    make_run(given, out, idle_ns=IDLE_NS).run(StopRequest(), command)
    assert [p.outcome for p in out.packets] == ["forwarded"]


def test_a_broken_pipe_ends_the_run() -> None:
    def broken(packet: Packet) -> None:
        raise BrokenPipeError

    run = make_run(FakeSession(forwarded(1)), Written(broken))
    with pytest.raises(BrokenPipeError):
        run.run(StopRequest())


@pytest.mark.parametrize(
    ("outcomes", "lost", "with_command", "expected"),
    [
        ({}, 0, False, 0), ({"dropped": 1}, 5, False, 0),
        ({}, 0, True, 12), ({}, 3, True, 11),
        ({"forwarded": 2}, 0, True, 0), ({"delivered": 2, "unknown": 1, "stolen": 1, "sent": 1}, 0, True, 0),
        ({"forwarded": 2}, 1, True, 11),
        ({"dropped": 1}, 0, True, 10), ({"rejected": 1}, 0, True, 10), ({"delivered": 5, "refused": 1}, 7, True, 10),
    ],
)  # fmt: skip
def test_status(outcomes: dict[str, int], lost: int, with_command: bool, expected: int) -> None:
    totals = RunSummary(packets=sum(outcomes.values()), lost=lost, outcomes=outcomes)
    assert status(totals, with_command) == expected


@pytest.mark.parametrize(("certain", "lost", "expected"), [(True, 0, 10), (True, 5, 10), (False, 0, 0), (False, 5, 11)])
def test_status_by_finding(certain: bool, lost: int, expected: int) -> None:
    """A certain finding decides, also when every packet was delivered; a likely finding does not."""
    found = Finding("x", (1,), "Something is wrong.", (), "", "", certain)
    totals = RunSummary(packets=1, lost=lost, outcomes={"delivered": 1}, findings=[found])
    assert status(totals, True) == expected
    assert status(totals, False) == 0


class Finds(Findings):
    """A finding for each forwarded packet; certain from the second one on."""

    def look(self, packet: Packet, again: Again | None = None) -> list[Finding]:
        if packet.outcome != "forwarded":
            return []
        self._found.add("x", Finding("", (), "Forwarded.", (), "", "", bool(self._found.all)), packet)
        return [f for f in self._found.all if f.certain]


class Owners:
    """Replaces the owner resolver: every packet gets a source owner."""

    selectors = Selectors()

    def wants(self, packet: Packet) -> bool:
        return True

    def attribute(self, packet: Packet) -> Packet:
        return replace(packet, src_owner=Owner("external"))

    def new_filter(self) -> None: ...


def keeping(original: Callable[..., object], packets: list[Packet]) -> Callable[..., object]:
    """The method of a stage, which keeps the packets it is given, too."""

    def keep(self: Any, packet: Packet, *more: object) -> object:
        packets.append(packet)
        return original(self, packet, *more)

    return keep


@pytest.mark.parametrize("waiting", ["SYN", "SYN ACK"])
def test_no_answer_is_missed_while_rules_are_read(waiting: str) -> None:
    """The table that one of the packets met is read for three seconds; the SYN was acknowledged after two milliseconds."""
    generations, reader = new_generations()
    out, source = Written(), LiveSource(cast(Session, FakeSession()))
    handshakes = HandshakeAnalyzer(FakeInspector())
    run = Run(source, PacketAssembler(hops(), rules=RuleResolver(generations)), [ConnectionStage(handshakes)], out)

    def packet(number: int, flags: str, ends: Ends, **more: int) -> EventArray:
        bits = sum(bit for bit, name in TCP_FLAGS if name in flags.split())
        trail = Trail(ends, number << 8, number * 1_000_000, tcp_flags=bits, pf=2, **more)
        if flags == waiting:
            trail.table("INPUT", "filter", object=0x1000, state=WATCHED)
        return trail.hook("POSTROUTING").batch

    syn, synack = packet(1, "SYN", ENDS), packet(2, "SYN ACK", swapped(ENDS), seq=90, ack=8)
    run.feed(Batch(3_000_000, np.concatenate([syn, synack, packet(3, "ACK", ENDS, seq=8, ack=91)])))
    for now in (500_000_000, 2_000_000_000, 3_000_000_000):
        run.feed(Batch(now, np.zeros(0, DTYPE)))
        assert not handshakes.by_cause, "the other packets are not shown yet"
    table = build({"INPUT": [R("ACCEPT")]}, name="filter").table()
    reader.ready.append(
        TableSnapshot(TableRequest(NODE, "ip", "filter"), READER_THREAD, 100, 200, table, SavedRules(table, None))
    )
    generations.add_changes([])
    generations.add_changes([TableLookup(110, READER_THREAD, NODE, "ip", "filter", 0x1000)])
    run.feed(Batch(3_100_000_000, np.zeros(0, DTYPE)))
    assert handshakes.by_cause == {"accepted": 1}


def test_outputs_findings_handshakes_and_connections_get_the_same_packet(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has its owners, and it does not change when a later part of it is seen."""
    given: dict[str, list[Packet]] = {}
    for stage, method in ((Findings, "look"), (HandshakeAnalyzer, "feed"), (ConnectionTracker, "feed")):
        given[stage.__name__] = []
        monkeypatch.setattr(stage, method, keeping(getattr(stage, method), given[stage.__name__]))
    syn = Trail(ENDS, 1 << 8, 1_000_000, in_name="eth0").hook("PREROUTING")
    early, rest = syn.batch, Trail(ENDS, 1 << 8, 2_000_000).add("DROP").batch
    rest["hop"] += len(early)
    shown: list[str] = []
    out, session, stop = Written(lambda packet: shown.append(repr(packet))), FakeSession(early, rest), StopRequest()
    session.on_end = stop.request
    source, summary = LiveSource(cast(Session, session)), RunSummary()
    stages: list[Stage] = [
        OwnerStage(cast(OwnerResolver, Owners()), source),
        ConnectionStage(HandshakeAnalyzer(), ConnectionTracker()),
        DisplayStage(summary),
        FindingStage(Findings()),
    ]
    Run(source, PacketAssembler(hops(), idle_ns=0), stages, out, summary=summary).run(stop)
    assert [len(p.hops) for p in out.packets] == [1, 1] and all(p.src_owner for p in out.packets)
    for name, packets in given.items():
        assert [id(p) for p in packets] == [id(p) for p in out.packets], name
    assert [repr(p) for p in out.packets] == shown


def test_findings_are_printed_at_once_and_kept_for_the_end() -> None:
    out, stop = Written(), StopRequest()
    given = FakeSession(forwarded(1), dropped(2), forwarded(3))
    given.on_end = stop.request
    run = make_run(given, out, drops_only=True, findings=Finds())
    run.run(stop)
    assert [p.number for p in out.packets] == [2], "packets that are not printed give findings too"
    assert [f.cause for f in out.findings] == ["Forwarded."]
    assert run.summary.findings == out.findings


@pytest.mark.parametrize(
    ("command", "why"), [("/no/such/command", "No such file or directory"), ("/etc/passwd", "Permission denied")]
)
def test_command_that_cannot_be_started(command: str, why: str) -> None:
    with pytest.raises(CommandNotFound) as e:
        start([command])
    assert str(e.value) == f"The command {command!r} cannot be started: {why}."
    assert e.value.status == 127


def test_ready_file(tmp_path: Path) -> None:
    path = tmp_path / "ready"
    path.write_text("of an earlier run, and longer")
    write_ready(str(path), 4242)
    assert path.read_text() == "4242\n"
    assert [p.name for p in tmp_path.iterdir()] == ["ready"], "no other file is left beside it"


def test_ready_file_follows_no_link(tmp_path: Path) -> None:
    """Neither under its own name nor under its temporary name."""
    victim = tmp_path / "victim"
    victim.write_text("precious")
    path = tmp_path / "ready"
    for planted in (path, path.with_name("ready.tmp")):
        planted.symlink_to(victim)
    write_ready(str(path), 4242)
    assert victim.read_text() == "precious" and path.read_text() == "4242\n" and not path.is_symlink()


def test_ready_file_that_cannot_be_written(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "ready"
    with pytest.raises(BadOption) as e:
        write_ready(str(path), 4242)
    assert str(e.value) == f"--ready-file {path} cannot be written: No such file or directory."
    assert e.value.status == 2
    (tmp_path / "taken").mkdir()
    with pytest.raises(BadOption, match=r"/taken cannot be written: Is a directory\.$"):
        write_ready(str(tmp_path / "taken"), 4242)
