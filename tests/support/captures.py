# SPDX-License-Identifier: Apache-2.0
"""Small captures of an invented machine, recorded as a real run records them, with the output that the run printed."""

from __future__ import annotations

import io
import itertools
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import TypeVar, cast

import numpy as np

from tests.support.blobs import R, build
from tests.support.builders import FUNCTIONS, NODE, REASONS, Ends, Names, Owners, Trail, swapped
from tests.support.ctnetlink import FakeConntrack
from tracer.capture.change_events import RecordedChangeLog, RecordedConntrackListener
from tracer.capture.journal import JournaledProcesses, JournaledPrograms, RecordedNamespaces
from tracer.capture.record.capture_files import RotationLimits
from tracer.capture.record.environment import RecordingEnvironment
from tracer.capture.record.flight_recorder import FlightRecorder
from tracer.capture.redact.records import RecordRedactor
from tracer.capture.replay import runner
from tracer.capture.replay.capture_reader import CaptureReader
from tracer.capture.replay.runner import ReplayRequest
from tracer.events import record
from tracer.events.record import DTYPE, SLOT, EventArray, Flag, Kind, Slots
from tracer.events.table_trace import RULESET, WATCHED
from tracer.kernel.session import Kernel, Session
from tracer.kube.catalog import ClusterView
from tracer.kube.filter_renewal import RenewedFilter
from tracer.kube.objects import Object
from tracer.kube.owner_resolver import ObjectSource, OwnerResolver
from tracer.kube.selectors import Selectors
from tracer.model.check import CheckResult
from tracer.model.filter import Filter
from tracer.model.loss import Loss
from tracer.model.summary import RunSummary
from tracer.node.namespaces import NamespaceNames
from tracer.node.node import HostReader
from tracer.packets.assembler import PacketAssembler
from tracer.packets.program_drops import NoPrograms
from tracer.pipeline import builder
from tracer.pipeline.assembly import Assembler, AssemblyParts
from tracer.pipeline.builder import RunOptions
from tracer.pipeline.capture_requests import CaptureRequests
from tracer.pipeline.environment import RunStart
from tracer.pipeline.joint_output import JointOutput
from tracer.pipeline.shutdown import StopRequest
from tracer.render import find
from tracer.render.base import Output
from tracer.render.json import JsonOutput
from tracer.rules.iptables.generations import TableGenerations
from tracer.rules.iptables.save_join import SavedRules
from tracer.rules.iptables.table_reader import TableRequest, TableSnapshot
from tracer.rules.rule_resolver import RuleResolver
from tracer.selection import stored_filter
from tracer.selection.display_filter import DisplayFilter

P = TypeVar("P")

CLIENT: Ends = ("192.168.56.1", 40812, "192.168.56.10", 30285)
POD_END: Ends = ("10.244.0.1", 50393, "10.244.0.11", 8080)
BLOB, READER = 0x1000, 77
CHANGED = 4_000_000
"""Time at which the nat table is replaced, ns: between the second request and the third."""
RUNNING = SimpleNamespace(
    symbols=SimpleNamespace(containing=lambda address: FUNCTIONS.get(address, "")),
    drop_reasons=lambda: REASONS,
    release="6.12.0",
)
"""The running kernel."""
FACTS = {
    "full": [CheckResult("kernel", "ok", "Linux 6.12")],
    "missed": [CheckResult("reset6", "degraded", "no REJECT: it is not there")],
}
SERVICE: Object = {
    "kind": "Service",
    "metadata": {"namespace": "default", "name": "http-proxy", "annotations": {"secret": "hunter2"}},
    "spec": {"clusterIPs": ["172.30.253.123"], "ports": [{"port": 80, "nodePort": 30285, "protocol": "TCP"}]},
}


def slots(batch: EventArray) -> Slots:
    """Events as in the ring buffer: each whole, or short where its flags or its kind require that."""
    rows = []
    for event in batch:
        raw = np.frombuffer(event.tobytes(), np.uint8)
        short = bool(event["flags"] & Flag.FLAG_SAME) or event["kind"] == Kind.EVENT_RULESET
        length = SLOT - 8 if short else DTYPE.itemsize
        data = np.concatenate([np.frombuffer(np.array([length, 0], "<u4").tobytes(), np.uint8), raw[:length]])
        rows.append(data.reshape(-1, SLOT))
    return np.concatenate(rows) if rows else np.zeros((0, SLOT), np.uint8)


def table_lookup(time: int) -> EventArray:
    """The event of a look-up of the filter table by the reader."""
    row = np.zeros(1, RULESET)
    for name, value in {
        "time": time,
        "object": BLOB,
        "netns": NODE,
        "thread": READER,
        "kind": Kind.EVENT_RULESET,
        "pf": 2,
    }.items():
        row[0][name] = value
    row[0]["table"] = b"filter"
    out = np.zeros(1, DTYPE)
    out.view(np.uint8)[: RULESET.itemsize] = row.view(np.uint8)
    return out


Chains = dict[str, list[R]]


def chains() -> Chains:
    """The filter table of the machine, which drops TCP packets in INPUT."""
    return {"INPUT": [R("DROP", protocol=6)], "FORWARD": [], "OUTPUT": []}


def reading(began: int, ended: int, rules: Chains | None = None) -> TableSnapshot:
    """A reading of the filter table. rules: its rules; None = those of chains()."""
    blob = build(rules or chains())
    table = blob.table()
    return TableSnapshot(
        TableRequest(NODE, "ip", "filter"), READER, began, ended, table, SavedRules(table, None), "", blob.data, None
    )


def request(number: int, start: int, inode: int = 48213) -> EventArray:
    """A SYN through a NodePort to a pod's listener. inode: inode of the listener's socket."""
    t = Trail(CLIENT, number << 8, start, in_name="eth0", orig=CLIENT, reply=swapped(POD_END), ct_info=2)
    t.hook("PREROUTING").nat("PREROUTING", 1, ("192.168.56.1", 40812, "10.244.0.11", 8080))
    t.nat("POSTROUTING", 0, POD_END).hook("POSTROUTING", in_name="", out_name="cni0")
    return t.add("SOCKET", object=inode, state=10, netns=200).batch


def refused(number: int, start: int) -> EventArray:
    """A packet that the filter table drops, and the event of its free."""
    t = Trail(("192.168.56.1", 40813 + number, "192.168.56.10", 8080), number << 8, start, in_name="eth0")
    t.table("INPUT", "filter", verdict="DROP", object=BLOB, state=WATCHED, pf=2)
    return t.add("DROP", object=0x10, reason=6).batch


class Probes:
    """Replaces a session: each drain returns one batch; then the batch's losses can be read. on_end: called after the last."""

    extensions = frozenset({("target", "DNAT", 2, "ip")})

    def __init__(self, batches: Sequence[tuple[EventArray, list[Loss]]], on_end: Callable[[], None]) -> None:
        self._batches, self._on_end, self._losses = list(batches), on_end, list[Loss]()
        self.planned = [SimpleNamespace(probe=SimpleNamespace(name="hook"), way="FEXIT", symbol="nf_hook_slow")]

    def drain(self) -> Slots:
        batch, self._losses = self._batches.pop(0) if self._batches else (record.NOTHING, [])
        if not self._batches:
            self._on_end()
        return slots(batch)

    def losses(self) -> list[Loss]:
        return self._losses

    def poll_losses(self) -> None: ...

    def set_filter(self, new_filter: Filter) -> None: ...


class PreparedTableReader:
    """A table reader that returns the readings in `ready`, one at a time."""

    def __init__(self, record: Callable[[TableSnapshot], None]) -> None:
        self.ready: list[TableSnapshot] = []
        self._record = record

    def request(self, request: TableRequest) -> None: ...

    def read(self) -> list[TableSnapshot]:
        found, self.ready = self.ready[:1], self.ready[1:]
        for each in found:
            self._record(each)
        return found

    def close(self) -> None: ...


class Machine(RecordingEnvironment):
    """The recording environment of an invented machine. chains: its filter table; None = that of chains()."""

    chains: Chains | None = None

    def cluster_view(self) -> ClusterView:
        return replace(super().cluster_view(), local=frozenset({"192.168.56.10"}))

    def namespaces(self) -> RecordedNamespaces:
        return RecordedNamespaces(self.buffer.journal, Named())

    def processes(self) -> JournaledProcesses:
        return JournaledProcesses(self.buffer.journal, Owners())

    def clock(self) -> int:
        return 10**18

    def tracking(self) -> set[int]:
        return set()

    def programs(self, stack: ExitStack) -> JournaledPrograms:
        self._programs = JournaledPrograms(self.buffer.journal, NoPrograms())
        return self._programs

    def change_log(self) -> RecordedChangeLog:
        changes = super().change_log()
        changes.add_rule_change(CHANGED, "nat", os.getpid())
        return changes

    def rules(self, namespaces: NamespaceNames, stack: ExitStack) -> RuleResolver:
        reader = PreparedTableReader(self.buffer.add_reading)
        reader.ready = [reading(100, 200, self.chains)]
        legacy = TableGenerations(reader, lambda act: act in Probes.extensions)
        for family in ("ip", "ip6"):
            legacy.request(TableRequest(NODE, family, ""))
        return RuleResolver(legacy)

    def assembler(self, parts: AssemblyParts) -> Assembler:
        assembler = super().assembler(parts)
        if isinstance(assembler, PacketAssembler):
            assembler._idle_ns = 0
        return assembler

    def host_reader(self) -> HostReader:
        nothing = self.files.names[0].parent
        return HostReader(nothing, nothing)


class Named(Names):
    def named(self) -> list[int]:
        return [NODE]


@dataclass
class Printed:
    """A capture and the output of the run that made it, by format. files: all its files; messages: the run's stderr."""

    path: Path
    text: dict[str, str] = field(default_factory=dict)
    messages: str = ""
    summary: RunSummary = field(default_factory=RunSummary)
    files: list[Path] = field(default_factory=list)


Batches = Sequence[tuple[EventArray, list[Loss]]]


def some_batches(packets: int = 6) -> list[tuple[EventArray, list[Loss]]]:
    """Batches with a loss, a table look-up, requests and refused packets."""
    batches = [np.concatenate([table_lookup(150), request(1, 1000), refused(2, 2000)])]
    batches += [np.concatenate([request(n, n * 1_000_000), refused(n + 1, n * 1_000_000 + 5000)]) for n in range(3, packets, 2)]
    made: list[tuple[EventArray, list[Loss]]] = [(b, []) for b in batches]
    made.insert(1, (record.NOTHING, [Loss("table", 1, 17, "the ring buffer was full")]))
    return [*made, (record.NOTHING, []), (record.NOTHING, [])]


def _end_early(output: Output, stop: StopRequest, count: int) -> None:
    """Ends the run at once when `count` packets have been printed."""
    counted = itertools.count(1)

    def ending(write: Callable[[P], None]) -> Callable[[P], None]:
        def written(packet: P) -> None:
            write(packet)
            if next(counted) == count:
                stop.end_now()

        return written

    output.packet = ending(output.packet)  # type: ignore[method-assign,assignment]
    output.repeat = ending(output.repeat)  # type: ignore[method-assign,assignment]


def capture(
    path: Path,
    batches: Batches | None = None,
    form: str = "text",
    sizes: RotationLimits = RotationLimits(),  # noqa: B008
    explained: bool = True,
    follow: bool = False,
    conntrack: FakeConntrack | None = None,
    redacted: RecordRedactor | None = None,
    end_after: int = 0,
    selectors: Selectors = Selectors(),  # noqa: B008
    renewals: Sequence[RenewedFilter] = (),
    conditions: DisplayFilter = DisplayFilter(),  # noqa: B008
    objects: Sequence[Object] = (SERVICE,),
    rules: Chains | None = None,
    recorder: FlightRecorder | None = None,
) -> Printed:
    """Makes a capture, and keeps what was printed.

    explained: False = only recorded, as `record` does. follow: with timelines of connections. conntrack: source of
    conntrack's events. end_after: number of packets after which the run ends at once, 0 = it explains all. renewals: filters
    that the probes get, one per batch. conditions: what user space evaluates of the filter. objects: Kubernetes' objects.
    rules: the filter table; None = that of chains(). recorder: takes the capture in place of files.
    """
    stop = StopRequest()
    machine, out, err = Machine(str(path), sizes, redacted, explained, recorder), io.StringIO(), io.StringIO()
    machine.chains = rules
    machine.conntrack = RecordedConntrackListener(
        machine.buffer, conntrack or FakeConntrack(why="conntrack's events cannot be read: so")
    )
    probes = Probes(batches if batches is not None else some_batches(), stop.request)
    with ExitStack() as stack:
        stack.callback(machine.close)
        source = ObjectSource(none=True, known=machine.cluster_view, replayed=True)  # no API
        kube = stack.enter_context(OwnerResolver(source, selectors, Filter()))
        coming = list(renewals)
        kube.renewals = lambda: [coming.pop(0)] if coming else []  # type: ignore[method-assign]
        kube.cluster.store.node = "node-1"
        kube.cluster.store.load(list(objects))
        machine.attach(cast(Kernel, RUNNING), cast(Session, probes))
        output: Output = find(form)(out, err)
        output = JointOutput((output, CaptureRequests(recorder, err))) if recorder else output
        built = builder.build(machine, kube, output, RunOptions(by_connection=follow, filters=(conditions,)), stack)
        request = {"said": "--port 30285", "words": asdict(selectors), "follow": follow, "record_only": not explained}
        request["conditions"] = stored_filter.encoded(conditions)
        machine.start(RunStart(kube, built.parts, FACTS, request))
        run = built.run
        if end_after:
            _end_early(output, stop, end_after)
        output.begin(FACTS["full" if form == "json" else "missed"], "--port 30285", "6.12.0")
        run.begin()
        run.run(stop)
        machine.close(run.summary.seconds)
        output.summary(run.summary)
    return Printed(path, {form: out.getvalue()}, err.getvalue(), run.summary, list(machine.files.names))


def read(path: Path) -> tuple[RunSummary, str]:
    """Replays a capture: its summary, and its JSON."""
    out = io.StringIO()
    with CaptureReader(str(path)) as capture:
        totals = runner.replay(capture, JsonOutput(out, io.StringIO()), ReplayRequest(), StopRequest())
        runner.check_complete(capture)
    return totals, out.getvalue()
