# SPDX-License-Identifier: Apache-2.0
"""No input ends a thread: each thread's unit of work is made to fail; the thread reports the error and works on."""

from __future__ import annotations

import http.client
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.api_server import ApiServer
from tests.support.blobs import R, build
from tests.support.waiting import PATIENCE, until
from tracer.capture.format import record_layout
from tracer.capture.format.schema import Record
from tracer.capture.record.buffer import Chunk
from tracer.capture.record.writer import CaptureWriter
from tracer.cluster.endpoint_readings import EndpointReadings
from tracer.connections import conntrack_events
from tracer.connections.conntrack_events import EntryEvents
from tracer.kernel import attached_programs, program_watcher
from tracer.kernel.attach_plan import UnavailableProbe
from tracer.kernel.late_modules import LateModules
from tracer.kernel.probes import PROBES
from tracer.kernel.program_watcher import ProgramWatcher
from tracer.kube.kubeconfig import ApiAccess
from tracer.kube.store import ObjectStore
from tracer.kube.watch import ObjectWatch
from tracer.model.bpf_program import AttachPoint
from tracer.model.rule import Ruleset
from tracer.node import netns
from tracer.pipeline.live_source import LiveSource
from tracer.rules.iptables import sockopt
from tracer.rules.iptables.table_reader import TableReader, TableRequest, TableSnapshot
from tracer.rules.nftables import snapshot
from tracer.rules.nftables.snapshot import Snapshot
from tracer.rules.nftables.watcher import RulesetWatcher
from tracer.util.worker import Warnings, Worker, user_warnings

TRACER = Path(__file__).parents[3] / "tracer"
OWN = Path("/proc/self/ns/net").stat().st_ino


class Unforeseen(Exception):
    """An error that no code expects."""


@pytest.fixture(autouse=True)
def warnings(monkeypatch: pytest.MonkeyPatch) -> Warnings:
    """The warnings for the user, empty at the start."""
    monkeypatch.setattr(user_warnings, "_keys", set())
    user_warnings.read()
    return user_warnings


def test_every_thread_is_a_worker() -> None:
    """A new thread is made with Worker, and tested here.

    The helper thread of netns.py and the run beside the screen of screen_run.py hand their error to the caller.
    """
    made = {
        str(path.relative_to(TRACER)): len(re.findall(r"threading\.Thread\(", path.read_text()))
        for path in TRACER.rglob("*.py")
    }  # fmt: skip
    assert {name: n for name, n in made.items() if n} == {"util/worker.py": 1, "node/netns.py": 1, "ui/screen_run.py": 1}
    users = {str(p.relative_to(TRACER)) for p in TRACER.rglob("*.py") if re.search(r"\bWorker\(", p.read_text())}
    assert users == {
        "capture/record/writer.py", "kernel/late_modules.py", "kube/watch.py", "rules/nftables/watcher.py",
        "rules/iptables/table_reader.py", "util/queued_stream.py", "connections/conntrack_events.py",
        "commands/start_notes.py", "analysis/top/keyboard.py", "agent/stream.py", "cluster/cluster_run.py",
        "metrics/endpoint.py", "cluster/endpoint_readings.py", "store/store_writer.py", "kernel/program_watcher.py",
        "pipeline/sending_thread.py", "kernel/program_pairs.py",
    }  # fmt: skip


def test_a_worker_continues_and_reports_the_same_error_once(warnings: Warnings) -> None:
    calls = []

    def unit() -> bool:
        calls.append(1)
        if len(calls) < 4:
            raise Unforeseen("bad\x1b name")
        return False

    Worker("test", unit).start().join(PATIENCE)
    assert len(calls) == 4
    (sentence,) = warnings.read()
    assert sentence.startswith("An unexpected error in the thread 'test' at test_worker.py:")
    assert sentence.endswith("(Unforeseen: bad\x1b name). The run continues without it.")
    assert warnings.read() == []


def test_the_number_of_warnings_is_limited() -> None:
    warnings = Warnings(most=3)
    for number in range(10):
        warnings.add(f"error {number}")
    assert warnings.read() == ["error 0", "error 1", "error 2", "There are more errors of this kind; they are not shown."]
    warnings.add("error 11")
    assert warnings.read() == []


def test_a_run_passes_warnings_to_the_user(warnings: Warnings) -> None:
    warnings.add("Something failed.")
    assert LiveSource(None).notes() == ["Something failed."]  # type: ignore[arg-type]


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Legacy rules of one namespace. broken: the table that cannot be read."""
    known: dict[str, Any] = {"broken": "nat"}

    @contextmanager
    def entered(path: Path) -> Iterator[None]:
        yield

    def read(family: str, table: str, room: int = 0) -> sockopt.RawTable:
        if table == known["broken"]:
            raise Unforeseen(table)
        blob = build({"INPUT": [R("DROP")]}, family, table)
        return sockopt.RawTable(bytearray(blob.data), blob.hooks, blob.underflows)

    monkeypatch.setattr(netns, "entered", entered)
    monkeypatch.setattr(sockopt, "present", lambda family: ["nat", "filter"])
    monkeypatch.setattr(sockopt, "read", read)
    monkeypatch.setattr(sockopt, "save", lambda family, table, watch: None)
    return known


def taken(reader: TableReader, count: int) -> list[TableSnapshot]:
    found: list[TableSnapshot] = []

    def enough() -> bool:
        found.extend(reader.read())
        return len(found) >= count

    until(enough)
    return found


def test_the_reader_of_legacy_rules(tables: dict[str, Any], warnings: Warnings) -> None:
    reader = TableReader(lambda inode: Path("/here"))
    reader.request(TableRequest(7, "ip", ""))
    nat, rest, every = taken(reader, 3)
    assert nat.table is None and nat.why == "they could not be read (Unforeseen: nat)"
    assert rest.table and not rest.why and every.request.table == ""
    reader.request(TableRequest(7, "ip", "filter"))
    (again,) = taken(reader, 1)
    assert again.table, "the thread still answers"
    (sentence,) = warnings.read()
    assert "reading the legacy table nat of network namespace 7" in sentence
    reader.close()


def test_the_list_of_legacy_tables(tables: dict[str, Any], monkeypatch: pytest.MonkeyPatch, warnings: Warnings) -> None:
    def fails(family: str) -> list[str]:
        raise Unforeseen

    reader = TableReader(lambda inode: Path("/here"))
    with monkeypatch.context() as context:
        context.setattr(sockopt, "present", fails)
        reader.request(TableRequest(7, "ip", ""))
        assert [r.request.table for r in taken(reader, 1)] == [""]
    reader.request(TableRequest(7, "ip", "filter"))
    assert taken(reader, 1)[0].table and warnings.read()
    reader.close()


def test_the_watch_of_nftables(monkeypatch: pytest.MonkeyPatch, warnings: Warnings) -> None:
    monkeypatch.setattr("tracer.rules.nftables.watcher.RETRY_SECONDS", 0.05)
    fails = threading.Event()
    fails.set()

    def read_new(fd: int, inode: int, known: object = (), prints: bool = True) -> tuple[int, Snapshot | None]:
        if fails.is_set():
            raise Unforeseen("a name")
        return 5, Snapshot(Ruleset("nft", inode, "5", {}), 5, {}, {})

    monkeypatch.setattr(snapshot, "read_new", read_new)
    with RulesetWatcher(pause=0.01) as watch:
        watch.poll(OWN)
        until(lambda: watch.changes())
        assert not watch.is_coming(OWN, 5), "a packet does not wait for rules that cannot be read"
        (sentence,) = warnings.read()
        assert f"the nftables rules of network namespace {OWN} " in sentence
        fails.clear()
        until(lambda: watch.find(OWN, 5))
        until(lambda: any(c.snapshot and not c.gone for c in watch.changes()))


def test_the_thread_of_conntrack_events(monkeypatch: pytest.MonkeyPatch, warnings: Warnings) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)

    class FailingSocket:
        """Fails once, with an error that a socket never raises."""

        failed = False

        def recv(self, size: int) -> bytes:
            if not self.failed:
                self.failed = True
                raise Unforeseen
            return ours.recv(size)

        def close(self) -> None:
            ours.close()

    class FailsOnce(EntryEvents):
        def _open_socket(self) -> None:
            ours.settimeout(0.05)
            self._sock = FailingSocket()  # type: ignore[assignment]
            self._thread = Worker("conntrack events", self._work).start()

    monkeypatch.setattr(conntrack_events, "unavailable_reason", lambda: "")
    events = FailsOnce()
    assert events.listen(True) == ""
    theirs.send(b"message")
    found: list[Any] = []
    until(lambda: found.append(events.read()) or found[-1])  # type: ignore[func-returns-value]
    found = found[-1]
    assert found[0][1] == b"message"
    assert "the thread 'conntrack events'" in warnings.read()[0]
    events.close()
    theirs.close()


def test_the_writer_of_a_capture(warnings: Warnings) -> None:
    written: list[Any] = []

    def insert(records: list[tuple[Any, ...]], batch: tuple[Any, ...] | None) -> None:
        if any(record[2] == "bad" for record in records):
            raise Unforeseen
        written.append((records, batch))

    closed = threading.Event()
    writer = CaptureWriter(insert, closed.set, 0)
    slots = np.zeros((1, record_layout.SLOT), np.uint8)
    writer.put(Chunk(1, [(1, Record.NOTE.value, "bad", "x")], [(1, 1, 0)], [slots], slots.nbytes))
    writer.put(Chunk(2, [(2, Record.NOTE.value, "good", "y")], [(2, 0, 0)]))
    writer.close()
    assert closed.is_set()
    assert any(record[2] == "good" for records, _ in written for record in records)
    assert "writing the capture" in warnings.read()[0]


def test_the_thread_that_reads_endpoints_again(warnings: Warnings) -> None:
    read = threading.Event()

    def slices(namespace: str, name: str) -> list[dict[str, Any]]:
        if name == "bad":
            raise Unforeseen
        read.set()
        return []

    readings = EndpointReadings(slices)
    readings.ask("shop", "bad")
    readings.ask("shop", "good")
    assert read.wait(PATIENCE)
    readings.close()
    assert "endpoints read again" in warnings.read()[0]


HOSTILE = [
    None,
    [1],
    "text",
    {"kind": "Service"},
    {"kind": "Service", "metadata": [1], "spec": {}},
    {"kind": "Service", "metadata": {"name": "a"}, "spec": {"ports": [{"port": "eighty"}]}},
    {"kind": "Service", "metadata": {"name": "a"}, "spec": {"clusterIPs": [{}], "ports": [{"port": 80}]}},
    {"kind": "Service", "metadata": {"name": "a"}, "spec": {"ports": [{"port": 80, "name": [1]}]}},
    {"kind": "Service", "metadata": {"name": {"a": 1}}, "spec": {"ports": 7}},
    {"kind": "Service", "metadata": {"name": "a"}, "spec": {"ports": [{"port": float("inf")}]}},
]


def good(name: str) -> dict[str, Any]:
    spec = {"clusterIP": "172.30.9.9", "ports": [{"port": 80, "protocol": "TCP", "name": "web"}]}
    return {"kind": "Service", "metadata": {"namespace": "shop", "name": name}, "spec": spec}


@pytest.mark.parametrize("body", HOSTILE, ids=str)
def test_objects_of_the_wrong_types_are_left_out(body: Any) -> None:
    store = ObjectStore()
    store.replace("Service", [body, good("cart")])
    store.apply("Service", body)
    store.delete("Service", body)
    store.load([body, good("till")])
    assert store.services.all(("shop", "till")), "a good object beside it is taken"


OTHERS = [
    ("EndpointSlice", {"metadata": {"name": "a", "labels": {"kubernetes.io/service-name": ["cart"]}}, "endpoints": []}),
    ("EndpointSlice", {"metadata": {"name": "a"}, "ports": [{"port": 1}], "endpoints": [{"addresses": [[1]]}]}),
    (
        "EndpointSlice",
        {"metadata": {"name": "a"}, "ports": [{"port": 1}], "endpoints": [{"addresses": ["::"], "nodeName": [1]}]},
    ),
    ("Endpoints", {"metadata": {"name": "a"}, "subsets": {"a": 1}}),
    ("Pod", {"metadata": {"name": "a"}, "status": {"podIPs": [{"ip": ["10.0.0.1"]}]}}),
    ("Pod", {"metadata": {"name": "a"}, "spec": {"containers": [{"ports": [{"hostPort": "x", "containerPort": 1}]}]}}),
    ("Node", {"metadata": {"name": "a"}, "spec": {"podCIDR": "10.0.0.0/x"}}),
    ("Node", {"metadata": {"name": "a"}, "spec": {"podCIDRs": [7]}, "status": {"addresses": [{"type": "InternalIP"}]}}),
]


@pytest.mark.parametrize(("kind", "body"), OTHERS, ids=str)
def test_objects_of_other_kinds(kind: str, body: Any) -> None:
    store = ObjectStore()
    store.replace(kind, [body])
    store.apply(kind, body)
    store.load([{"kind": kind, **body}, good("till")])
    store.delete(kind, body)
    assert store.services.all(("shop", "till"))


class Client:
    """An API with given answers: `list` returns them, `watch` yields them; an exception is raised."""

    def __init__(self, answers: list[Any]) -> None:
        self._answers = answers

    def list(self, resource: object) -> tuple[list[Any], str]:
        return [good("cart")], "1"

    def watch(self, resource: object, version: str) -> Iterator[tuple[str, Any]]:
        if not self._answers:
            raise OSError("no more")
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return iter([answer])

    def interrupt(self) -> None: ...


def test_the_watch_of_the_api(monkeypatch: pytest.MonkeyPatch, warnings: Warnings) -> None:
    odd = [("MODIFIED", body) for body in HOSTILE]
    answers: list[Any] = [Unforeseen("first"), *odd, RecursionError(), ("ADDED", good("till"))]
    monkeypatch.setattr("tracer.kube.watch.ApiClient", lambda access: Client(list(answers)))
    store = ObjectStore()
    watch = ObjectWatch(ApiAccess("http", "127.0.0.1", 1), store, lambda s: "node-1", pause=0.001)
    watch.start()
    until(lambda: store.services.all(("shop", "till")))
    notes = watch.notes()
    watch.close()
    assert any("sent what cannot be understood (Unforeseen)" in sentence for sentence in notes)
    assert any("they are ignored and unnamed" in sentence for sentence in notes)
    assert any("following the services of the Kubernetes API" in sentence for sentence in warnings.read())


@pytest.mark.parametrize("text", [b"null", b"[1]", b'{"items": "text"}', b'{"metadata": [1]}', b"[" * 200_000, b'{"items": 7}'])
def test_answers_that_are_no_lists(text: bytes, server: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real client reads such an answer as an ordinary error, and takes the next answer."""
    first = threading.Event()
    read: Any = http.client.HTTPResponse.read

    def odd(self: Any, *size: int) -> bytes:
        whole: bytes = read(self, *size)
        if not first.is_set():
            first.set()
            return text
        return whole

    monkeypatch.setattr(http.client.HTTPResponse, "read", odd)
    store = ObjectStore()
    watch = ObjectWatch(ApiAccess("http", "127.0.0.1", server.port), store, lambda s: "node-1", pause=0.01)
    watch.start()
    assert watch.wait(PATIENCE)
    watch.close()
    assert store.services


def test_modules_that_are_loaded_late(warnings: Warnings, tmp_path: Path) -> None:
    """Each module is named once, with the events that are not shown; refused probes may have any reason."""
    rows = {p.name: p for p in PROBES}
    why = "module nft_fwd_netdev is not loaded"
    refused = [
        UnavailableProbe(rows["nft_fwd"], why),
        UnavailableProbe(rows["nft_fwd_to"], why),
        UnavailableProbe(rows["hook"], "it is not there"),
    ]
    with LateModules(refused, tmp_path, pause=0.01) as late:
        (tmp_path / "nf_nat").mkdir()
        (tmp_path / "nft_fwd_netdev").mkdir()
        until(lambda: not late.missed)
    until(lambda: warnings._queue)
    assert warnings.read() == [
        "The kernel module nft_fwd_netdev was loaded after this run began. Start again to see: "
        f"{rows['nft_fwd'].shows}; {rows['nft_fwd_to'].shows}."
    ]


def test_what_several_rows_of_a_late_module_show_is_said_once(tmp_path: Path) -> None:
    why = "module nfnetlink_queue is not loaded"
    late = LateModules([UnavailableProbe(p, why) for p in PROBES if p.module == "nfnetlink_queue"], tmp_path)
    (shown,) = late.missed.values()
    assert len(shown) == len(set(shown)) >= 4


def test_the_thread_that_reads_ebpf_programs(warnings: Warnings, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it reads of a namespace, and the names of namespaces, may be unforeseen; what follows is read as before."""
    looked, fails = [0], [False]

    def named() -> list[int]:
        looked[0] += 1
        if fails[0]:
            raise Unforeseen("a name")
        return []

    def unforeseen(catalog: object) -> None:
        raise Unforeseen("an attribute")

    monkeypatch.setattr(program_watcher, "_named", named)
    monkeypatch.setattr(program_watcher, "WAIT_SECONDS", 0.01)
    monkeypatch.setattr(attached_programs, "read", unforeseen)
    with ProgramWatcher() as watcher:
        assert "reading the eBPF programs of a network namespace" in " ".join(warnings.read())
        assert watcher.periods(watcher._own, 1, AttachPoint.XDP, time.monotonic_ns()) == ()
        fails[0] = True
        until(lambda: any("the thread 'eBPF programs'" in each for each in warnings.read()))
        fails[0], before = False, looked[0]
        until(lambda: looked[0] > before)
