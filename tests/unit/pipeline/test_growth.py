# SPDX-License-Identifier: Apache-2.0
"""A run in which every packet, socket, namespace, connection, chain and table is a new one: nothing that it holds grows.

The bounds are made small, and the sizes of all containers are found by walking through the objects of the run: a container
without a bound is noticed wherever it is. GROWTH_PACKETS=100000 makes a long run.
"""

from __future__ import annotations

import io
import logging
import os
import re
from collections.abc import Generator, Iterator
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.support.blobs import R, build
from tests.support.builders import FUNCTIONS, NODE, REASONS, SECOND, Ends, Trail, swapped
from tests.support.ctnetlink import ADDED, REMOVED, message
from tests.support.findings import FakeNode
from tests.support.sizes import sizes
from tests.support.syns import FakeInspector
from tests.unit.events.test_payload import records
from tracer.capture.journal import JournaledProcesses, RecordedNamespaces
from tracer.capture.record.buffer import RecordBuffer
from tracer.connections.change_log import ChangeLog
from tracer.connections.conntrack_events import Datagram
from tracer.connections.tracker import ConnectionTracker
from tracer.events.record import NOTHING, SLOT
from tracer.events.table_trace import WATCHED, TableLookup, TableReplaced
from tracer.findings import Findings
from tracer.findings.context import FindingContext
from tracer.handshakes.analyzer import HandshakeAnalyzer
from tracer.kernel.loss_counters import Loss
from tracer.kube.owner_resolver import ObjectSource, OwnerResolver
from tracer.kube.selectors import Selectors
from tracer.model.endpoints import Endpoints
from tracer.model.filter import Filter
from tracer.model.rule import Ruleset
from tracer.model.summary import RunSummary
from tracer.node.namespaces import Namespaces
from tracer.node.processes import Processes
from tracer.packets.assembler import PacketAssembler
from tracer.packets.hop_builder import HopBuilder
from tracer.pipeline.connection_stage import ConnectionStage
from tracer.pipeline.display_stage import DisplayStage
from tracer.pipeline.finding_stage import FindingStage
from tracer.pipeline.owner_stage import OwnerStage
from tracer.pipeline.run import Run
from tracer.pipeline.shutdown import StopRequest
from tracer.pipeline.source import Batch, RunProgress
from tracer.render.text import TextOutput
from tracer.rules.iptables.generations import TableGenerations
from tracer.rules.iptables.save_join import SavedRules
from tracer.rules.iptables.table_reader import TableRequest, TableSnapshot
from tracer.rules.nftables.snapshot import Snapshot
from tracer.rules.nftables.snapshot_cache import SnapshotCache
from tracer.rules.nftables.watcher import RulesetUpdate
from tracer.rules.rule_resolver import RuleResolver
from tracer.util.evictions import evictions

PACKETS = int(os.environ.get("GROWTH_PACKETS", "4800"))
AT_ONCE = 12
"""Packets of one batch."""
SMALL = 30
"""Each bound."""
MOST = 200
"""No container may be larger: SMALL and what one batch adds, ten events a packet. There are more batches than that, so that a
container that gets one entry with each batch is found."""
BOUNDS = {
    "tracer.packets.assembler": ("CLOSED_KEPT", "NAMESPACES_KEPT"),
    "tracer.packets.payload_store": ("PACKETS_KEPT",),
    "tracer.packets.loss_history": ("MAX_LOSSES",),
    "tracer.packets.hop_builder": ("LISTENERS_KEPT",),
    "tracer.packets.ipvs_connections": ("CONNECTIONS_KEPT",),
    "tracer.node.namespaces": ("NAMES_KEPT",),
    "tracer.node.processes": ("MISSED_KEPT", "PIDS_KEPT", "OWNERS_KEPT"),
    "tracer.capture.journal": ("NAMES_KEPT",),
    "tracer.capture.record.buffer": ("ANSWERS_KEPT",),
    "tracer.rules.rule_resolver": ("CONNECTIONS_KEPT", "PACKETS_KEPT", "GENERATIONS_KEPT"),
    "tracer.rules.iptables.generation": ("ADDRESSES_KEPT", "REPLACED_KEPT"),
    "tracer.rules.iptables.path_cache": ("TRACES_KEPT",),
    "tracer.rules.iptables.request_queue": ("TABLES_KEPT", "MAX_REQUESTS"),
    "tracer.rules.iptables.lookup_history": ("LOOKUPS_KEPT", "THREADS_KEPT"),
    "tracer.rules.nftables.namespace_snapshots": ("NAMESPACES_KEPT", "GENERATIONS_KEPT"),
    "tracer.handshakes.correlator": ("MAX_ATTEMPTS",),
    "tracer.handshakes.snat_clients": ("MAX_ADDRESSES", "MAX_CLIENTS"),
    "tracer.connections.conntrack_events": ("MAX_EVENTS",),
    "tracer.connections.change_log": ("MAX_ENTRIES",),
    "tracer.findings": ("MOST_WAITING",),
    "tracer.findings.found": ("MOST_FINDINGS",),
    "tracer.findings.context": ("COUNTS_KEPT", "CONNECTIONS_KEPT"),
    "tracer.render.text": ("KEPT_PATHS", "KEPT_FINDINGS"),
    "tracer.kube.catalog": ("MOST_REMEMBERED", "MOST_WALKS"),
}  # fmt: skip


NO_SLOTS = np.zeros((0, SLOT), np.uint8)


def packet(number: int) -> npt.NDArray[Any]:
    """The events of one packet of one of several kinds; `numbered` makes every number in it a new one."""
    client: Ends = ("10.0.0.1", 1000 + number, "192.168.56.10", 30285)
    half, inside = (*client[:2], "10.244.0.11", 8080), ("172.16.0.1", 2000 + number, "10.244.0.11", 8080)
    t = Trail(
        client, (number + 1) << 8, SECOND + 1000 * number, orig=client, reply=swapped(client), ct_info=2, pf=2, seq=number
    )
    t.table("PREROUTING", "nat", object=0x100000, state=WATCHED).nat("PREROUTING", 1, half).hook("PREROUTING")
    t.table("POSTROUTING", "nat").now(reply=swapped(inside)).nat("POSTROUTING", 0, inside, flags="MASQ")
    if number % 4 == 1:
        t.add("CHAIN", hook="FORWARD", table="filter", chain="c", verdict="DROP", object=9)
        return t.add("DROP", object=0x10, reason=6, verdict="DROP").batch
    if number % 4 == 2:
        t.add("IPVS", hook="INPUT", state=1, manip=1, object=0x9000, orig=client, reply=swapped(half), table="rr")
    if number % 4 == 3:
        return t.now(tcp_flags=16).hook("POSTROUTING").batch
    t.now(orig=None, reply=None).hook("INPUT").add("SOCKET", object=48213, state=10)
    return t.add("SYN", verdict=1, object=48213, accept_max=128, flags="NO_HEADER").batch


TEMPLATE = np.concatenate([packet(number) for number in range(AT_ONCE)])


def numbered(batch: int) -> npt.NDArray[Any]:
    """The events of a batch of packets that have nothing in common with those of any other batch."""
    events = TEMPLATE.copy()
    first = batch * AT_ONCE
    events["packet"] += np.uint64(first << 8)
    events["time"] += np.uint64(batch * SECOND // 5)
    events["seq"] += np.uint32(first)
    events["netns"] += batch
    events["object"] += (events["object"] > 0).astype(np.uint64) * np.uint64(first * 0x100)
    for field in ("src", "dst", "orig_src", "orig_dst", "reply_src", "reply_dst"):
        raw = np.ascontiguousarray(events[field]).view(np.uint8).reshape(len(events), 16).copy()
        raw[raw.any(axis=1), 13:15] += np.frombuffer(np.uint16(batch).tobytes(), np.uint8)
        events[field] = raw.view(events.dtype[field]).reshape(len(events))
    return events


class Machine:
    """The rules, conntrack events and Kubernetes objects of the run: new ones with each batch. It is the run's source, too."""

    def __init__(self, resolver: RuleResolver | None = None) -> None:
        self.kube: OwnerResolver | None = None
        self.number = self.lost = 0
        self.updates: list[RulesetUpdate] = []
        self.datagrams: list[Datagram] = []
        self.requests: list[TableRequest] = []
        self.generations: TableGenerations | None = None
        self.table = build({"PREROUTING": [R("ACCEPT")], "POSTROUTING": []}, name="nat").table()

    # ---- the reader of legacy tables

    def request(self, request: TableRequest) -> None:
        self.requests.append(request)

    def read(self) -> list[TableSnapshot]:
        requests, self.requests = self.requests, []
        began = self.number * 1000
        return [TableSnapshot(r, 77, began, began + 999, self.table, SavedRules(self.table, None)) for r in requests]

    def close(self) -> None: ...

    # ---- the reader of nftables' rules, and the listener of conntrack

    def changes(self) -> list[RulesetUpdate]:
        updates, self.updates = self.updates, []
        return updates

    def is_coming(self, space: int, generation: int) -> bool:
        return False

    def listen(self, is_requested: bool) -> str:
        return ""

    def process(self, port: int) -> str:
        return f"program {port}"

    # ---- the source

    explains_backlog, seconds = False, 0.0

    def batches(self, run: RunProgress) -> Generator[Batch, None, None]:
        yield from self.made()

    def made(self) -> Iterator[Batch]:
        assert self.kube and self.generations
        for self.number in range(1, PACKETS // AT_ONCE + 1):
            n = self.number
            self._change(n)
            events = numbered(n)
            payloads = np.concatenate([records(int(p), b"bytes of a packet") for p in np.unique(events["packet"])[:5]])
            losses = [Loss("table", -1, 1, "the ring buffer was full", int(events["time"][0]), int(events["time"][-1]))]
            yield Batch(int(events["time"].max()) + SECOND // 10, np.concatenate([events, payloads]), losses if n % 3 else [])
        yield Batch(int(events["time"].max()) + SECOND, NOTHING, last=True)

    def _change(self, n: int) -> None:
        assert self.kube and self.generations
        self.updates += [RulesetUpdate(n, n, False, Snapshot(Ruleset("nft", n, str(n), {}), n, {}, {}))]
        self.updates += [RulesetUpdate(1, n, False, Snapshot(Ruleset("nft", 1, str(n), {}), n, {}, {}))]
        ends = Endpoints("10.9.0.1", n % 60000, f"10.8.{n >> 8 & 255}.{n & 255}", 80)
        self.datagrams += [
            (n * SECOND // 5, message(*ADDED, orig=ends, zone=0)),
            (n * SECOND // 5, message(*REMOVED, orig=ends)),
        ]
        lookup = TableLookup(n * 1000 + 5, n, NODE + n, "ip", "nat", 0x100000 + n * AT_ONCE * 0x100)
        again = TableLookup(n * 1000 + 6, 77, NODE + n, "ip", "nat", 0x100000 + n * AT_ONCE * 0x100)
        self.generations.add_changes([lookup, again, TableReplaced(n * 1000 + 9, n, 0x9000000 + n * 64, 0xA000000 + n * 64)])
        name = {"namespace": "shop", "name": f"s{n}"}
        service = {
            "kind": "Service",
            "metadata": name,
            "spec": {"clusterIP": f"10.7.{n >> 8 & 255}.{n & 255}", "ports": [{"port": 80}]},
        }
        self.kube.cluster.store.apply("Service", service)
        self.kube.cluster.store.delete("Service", service)

    def notes(self) -> list[str]:
        return self.kube.notes() if self.kube else []

    def poll_losses(self) -> None: ...
    def set_filter(self, new_filter: Filter) -> None: ...
    def mark_unexplained(self, chunks: int) -> None: ...

    def was_unexplained(self) -> bool:
        return False

    def renewals(self) -> list[Any]:
        return []


class Conntrack:
    """The machine's conntrack events."""

    lost = 0

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self.listen, self.process, self.close = machine.listen, machine.process, machine.close

    def read(self) -> list[Datagram]:
        found, self._machine.datagrams = self._machine.datagrams, []
        return found


@pytest.mark.parametrize("follow", [False, True], ids=["by packet", "by connection"])
def test_nothing_grows(follow: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "tracer.pipeline.run")
    for module, names in BOUNDS.items():
        for name in names:
            monkeypatch.setattr(import_module(module), name, SMALL)
    monkeypatch.setattr("tracer.node.processes._processes", lambda: iter([7]))
    monkeypatch.setattr(
        Processes, "_read", lambda self, pid, inode: self._owners.update({inode: (pid, "x")} if (inode >> 10) % 4 else {})
    )
    monkeypatch.setattr(Namespaces, "_read_named", lambda self: None)
    monkeypatch.setattr(Namespaces, "_read_processes", lambda self: self._names.update({n: f"ns {n}" for n in range(200, 240)}))
    evictions.read()
    machine, buffer, changes = Machine(), RecordBuffer(), ChangeLog()
    buffer.start(lambda chunk: None)
    machine.generations = TableGenerations(machine, lambda act: False)
    rules = RuleResolver(machine.generations, SnapshotCache(machine))
    rules.replaced = changes.add_rule_change
    namespaces = RecordedNamespaces(buffer.journal, Namespaces())
    processes = JournaledProcesses(buffer.journal, Processes(pause=-1))
    hops = HopBuilder(namespaces, processes, REASONS, lambda address: FUNCTIONS.get(address & 0xFF, ""))
    kube = machine.kube = OwnerResolver(ObjectSource(none=True), Selectors(), Filter())
    findings = Findings(FindingContext(kube.cluster, FakeNode()))
    tracker = ConnectionTracker(max_timelines=SMALL, max_entries=3 * SMALL) if follow else None
    stage = ConnectionStage(HandshakeAnalyzer(FakeInspector()), tracker, changes, findings, conntrack=Conntrack(machine))
    output = TextOutput(io.StringIO(), io.StringIO())
    monkeypatch.setattr(output, "put", lambda *lines: None)
    summary = RunSummary()
    stages = [OwnerStage(kube, machine), stage, DisplayStage(summary, by_connection=follow), FindingStage(findings)]

    largest: dict[str, int] = {}

    def watched() -> Generator[Batch, None, None]:
        for number, batch in enumerate(machine.made()):
            buffer.add_batch(batch.now, NO_SLOTS, batch.last)
            yield batch
            buffer.flush()
            if number % 20 == 19:
                found = sizes(run, buffer)
                largest.update({path: max(size, largest.get(path, 0)) for path, size in found.items()})

    # Of the class: the walk must not find what the test keeps itself.
    monkeypatch.setattr(Machine, "batches", lambda machine, run: watched())
    run = Run(machine, PacketAssembler(hops, rules=rules), stages, output, summary=summary)
    run.run(StopRequest())
    assert run.summary.packets == PACKETS // AT_ONCE * AT_ONCE
    assert len(largest) > 100, "the walk finds the containers of the run"
    grown = {path: size for path, size in largest.items() if size > MOST}
    assert {path: size for path, size in grown.items() if "watched()" not in path} == {}, "watched() belongs to the test"
    counted = {name for line in caplog.messages if line.startswith("evicted: ") for name in re.findall(r"\d+ ([^,]+)", line)}
    expected = {
        "closed packets", "open SYNs", "names of namespaces", "owners of sockets", "sockets without an owner",
        "listening sockets", "connections of IPVS", "translations of connections", "tables that were read",
        "threads that look up tables", "generations of tables (in force)", "generations of tables (replaced)",
        "namespaces with nftables' rules", "generations of nftables", "namespaces that use conntrack",
        "addresses that clients share", "answers in the record buffer",
    }  # fmt: skip
    expected |= {"timeouts of conntrack entries"} if follow else set()
    assert expected <= counted, f"not filled: {expected - counted}"


def test_a_container_without_a_bound_is_found() -> None:
    class Holder:
        def __init__(self) -> None:
            self.inner = [{"seen": set(range(MOST + 1))}]
            self.call = lambda: self.inner

    Holder.__module__ = "tests.sample"
    assert {p: s for p, s in sizes(Holder()).items() if s > MOST} == {"Holder.inner[][]": MOST + 1}
