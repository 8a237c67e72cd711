# SPDX-License-Identifier: Apache-2.0
"""The probes follow the objects at once, also while older packets are explained; a note shows the time of the change."""

from __future__ import annotations

import io
import json
import re
import time
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from tests.support import captures
from tests.support.api_server import ApiServer
from tests.support.builders import Trail, hops
from tests.support.waiting import until
from tests.unit.kube.test_selectors import OBJECTS, Session, addresses
from tracer.capture.format.schema import Record
from tracer.capture.replay.capture_reader import CaptureReader
from tracer.errors import NoObjects, NoSuchObject
from tracer.events import record
from tracer.kernel import filter_maps
from tracer.kernel import session as kernel
from tracer.kube import store as store_module
from tracer.kube.catalog import ClusterView
from tracer.kube.filter_renewal import KEPT_RENEWALS, FilterHistory, FilterRenewal, RenewedFilter
from tracer.kube.owner_resolver import FULL, ObjectSource, OwnerResolver
from tracer.kube.selectors import Selectors
from tracer.kube.store import ObjectStore
from tracer.model.filter import MAX_HOSTS, Filter, parse_host
from tracer.model.packet import Packet
from tracer.model.summary import RunSummary
from tracer.packets.assembler import PacketAssembler
from tracer.pipeline.display_stage import DisplayStage
from tracer.pipeline.live_source import LiveSource
from tracer.pipeline.owner_stage import OwnerStage
from tracer.pipeline.run import Run
from tracer.render.text import TextOutput

OLD, NEW = 30285, 31999
SERVICE = "default/http-proxy"


def renumbered(port: int) -> Any:
    """The Service with another NodePort."""
    services = (o for o in OBJECTS if o["kind"] == "Service" and o["metadata"]["name"] == "http-proxy")
    service = json.loads(json.dumps(next(services)))
    service["spec"]["ports"][0]["nodePort"] = port
    return service


def request(number: int, port: int, at: int) -> Any:
    trail = Trail(("192.168.56.1", 40000 + number, "192.168.56.10", port), number << 8, at, in_name="eth0").hook("PREROUTING")
    return trail.hook("POSTROUTING", in_name="", out_name="cni0").batch


class SlowOutput(TextOutput):
    """While its first packet is printed, a NodePort changes: it waits until the probes have the new port, or gives up."""

    def __init__(self, out: io.StringIO, err: io.StringIO, server: ApiServer, session: Session) -> None:
        super().__init__(out, err)
        self._server, self._session, self.renewed = server, session, False

    def packet(self, packet: Packet) -> None:
        super().packet(packet)
        if not self.renewed:
            self._server.put(renumbered(NEW))
            until(lambda: self._session.filters and NEW in self._session.filters[-1].ports)
            self.renewed = True


class Batches(Session):
    """Gives one batch per reading."""

    def __init__(self, *batches: Any) -> None:
        super().__init__()
        self._batches = list(batches)

    def events(self) -> Any:
        return self._batches.pop(0) if self._batches else record.NOTHING


def test_the_probes_follow_while_packets_are_explained(tmp_path: Path, server: ApiServer) -> None:
    now = time.monotonic_ns()
    backlog = np.concatenate([request(1, OLD, now - 10**9), request(2, OLD, now - 10**9 + 1)])
    session, out, err = Batches(backlog), io.StringIO(), io.StringIO()
    with OwnerResolver(ObjectSource(kubeconfig=server.kubeconfig(tmp_path)), Selectors(services=(SERVICE,)), Filter()) as kube:
        assert OLD in kube.filter().ports
        slow = SlowOutput(out, err, server, session)
        source, summary = LiveSource(cast(kernel.Session, session), kube), RunSummary()
        stages = [OwnerStage(kube, source), DisplayStage(summary)]
        run = Run(source, PacketAssembler(hops(), idle_ns=0), stages, slow, summary=summary)
        with kube.unchanged():
            run.feed(source.read())
        assert slow.renewed and OLD not in session.filters[-1].ports
        until(lambda: NEW in {p.node_port for p in kube.cluster.store.services.values()})
        # One packet came before the change and is explained after it, and one came after it.
        session._batches.append(np.concatenate([request(3, OLD, now - 10**9 + 2), request(4, NEW, time.monotonic_ns())]))
        session._batches.append(request(5, OLD, time.monotonic_ns() + 1))
        with kube.unchanged():
            run.feed(source.read())
            run.feed(source.read(last=True))
        kube.detach()
    shown_ports = re.findall(r"-> 192\.168\.56\.10:(\d+)", out.getvalue())
    assert shown_ports == [str(OLD)] * 3 + [str(NEW)], "each was selected when it came; the last one was not"
    note = rf"The objects have changed\. Since \d\d:\d\d:\d\d\.\d{{3}} .* new filter: with port {NEW}, without port {OLD}\."
    assert re.search(note, err.getvalue())


def test_nothing_is_written_to_probes_that_end(tmp_path: Path, server: ApiServer) -> None:
    session = Session()
    with OwnerResolver(ObjectSource(kubeconfig=server.kubeconfig(tmp_path)), Selectors(services=(SERVICE,)), Filter()) as kube:
        kube.attach(session.set_filter)
        kube.detach()
        before = len(session.filters)
        server.put(renumbered(NEW))
        until(lambda: NEW in {p.node_port for p in kube.cluster.store.services.values()})
        assert len(session.filters) == before


def test_a_filter_that_cannot_be_written_does_not_end_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    known, failures = ClusterView(), list[str]()
    renewal = FilterRenewal(Selectors(services=(SERVICE,)), Filter(), known)
    monkeypatch.setattr("tracer.kube.filter_renewal.user_warnings.add_failure", lambda what, e: failures.append(f"{what}: {e}"))

    def write(to: Filter) -> None:
        raise OSError("no room")

    renewal.attach(write)
    known.store.load(OBJECTS)
    assert set(failures) == {"renewing the filter of the probes: no room"} and known.store.services.all(
        ("default", "http-proxy")
    )


def test_waiting_and_kept_renewals_are_bounded() -> None:
    known = ClusterView(ObjectStore())
    renewal = FilterRenewal(Selectors(services=(SERVICE,)), Filter(), known)
    renewal.attach(lambda to: None)
    known.store.load(OBJECTS)
    for port in range(31000, 31000 + KEPT_RENEWALS + 3):
        known.store.apply("Service", renumbered(port))
    assert len(renewal.read()) == KEPT_RENEWALS and renewal._waiting.evicted == 5 and renewal.read() == []
    history = FilterHistory()
    for number in range(KEPT_RENEWALS + 2):
        history.add(RenewedFilter(number * 10, frozenset({("", number + 1, "tcp")}), Filter(ports=(number + 1,))))
    assert history._kept.evicted == 2 and len(history.at(0)) == KEPT_RENEWALS
    newest = history.at(10 * (KEPT_RENEWALS + 1))
    assert [each.ends for each in newest] == [frozenset({("", KEPT_RENEWALS + 2, "tcp")})] and len(
        history.at(10 * KEPT_RENEWALS)
    ) == 2


class Hosts(dict[Any, Any]):
    """The map of hosts; the log has its size after each step."""

    def __init__(self, log: list[tuple[str, int]]) -> None:
        super().__init__()
        self._log = log

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(key, value)
        self._log.append(("hosts", len(self)))
        assert len(self) <= MAX_HOSTS, "the kernel's map is full"

    def __delitem__(self, key: Any) -> None:
        super().__delitem__(key)
        self._log.append(("hosts", len(self)))


class Array(dict[Any, Any]):
    def __init__(self, name: str, size: int, log: list[tuple[str, int]]) -> None:
        super().__init__()
        self._name, self._log = name, log
        self._size = size

    def __setitem__(self, key: Any, value: Any) -> None:
        assert key == bytes(4) and len(value) == self._size
        self._log.append((self._name, any(value)))


@pytest.mark.parametrize("count", [2, MAX_HOSTS])
def test_a_host_that_stays_selected_passes_all_the_time(count: int) -> None:
    log: list[tuple[str, int]] = []
    sizes = {"filters": filter_maps.filter_record(Filter()).nbytes, "ports": filter_maps.port_roles(((), (), (), ())).nbytes}
    maps: dict[str, Any] = {"hosts": Hosts(log), **{name: Array(name, size, log) for name, size in sizes.items()}}
    hosts = [parse_host(f"10.0.{n >> 8}.{n & 255}") for n in range(2 * count)]
    filter_maps.write(maps, Filter(ports=(80,), hosts=tuple(hosts[:count])))
    log.clear()
    filter_maps.write(maps, Filter(ports=(80, 81), hosts=tuple(hosts[1 : count + 1])))
    names = [name for name, _ in log]
    kept = filter_maps.network_key(hosts[1])
    assert kept in maps["hosts"] and len(maps["hosts"]) == count
    assert names == (["hosts", "ports", "filters", "hosts"] if count == 2 else ["hosts", "hosts", "ports", "filters"])
    log.clear()
    filter_maps.write(maps, Filter(hosts=(hosts[1],)))
    assert [name for name, _ in log][:2] == ["filters", "ports"], "ports that are no longer compared are emptied afterwards"


def test_a_capture_has_the_renewals(tmp_path: Path, run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A packet to the old port came before the change and is explained after it; a replay shows it, too."""
    monkeypatch.setattr("tracer.pipeline.live_source.POLL_SECONDS", 0.001)
    at = 1_000_000
    steps = [
        RenewedFilter(0, frozenset({("", OLD, "tcp")}), Filter(ports=(OLD,))),
        RenewedFilter(2 * at, frozenset({("", NEW, "tcp")}), Filter(ports=(NEW,), hosts=(parse_host("192.168.56.10"),))),
    ]
    batches: captures.Batches = [(request(n, port, n * at), []) for n, port in ((1, OLD), (3, NEW), (4, OLD))]
    made = captures.capture(tmp_path / "a.k8st", batches, selectors=Selectors(node_ports=(OLD,)), renewals=steps)
    shown_ports = re.findall(r"-> 192\.168\.56\.10:(\d+)  SYN  60", made.text["text"])
    assert shown_ports == [str(OLD), str(NEW)], "the last one came when the old port was no longer selected"
    status, now, _ = run("-r", made.path)
    assert (status, now) == (0, made.text["text"])
    with CaptureReader(str(made.path)) as capture:
        bodies = [body for _, kind, _, body in capture.records() if kind == Record.FILTER]
    assert [body[0] for body in bodies] == [0, 2 * at] and bodies[1][2:] == [["192.168.56.10/32"], [NEW]]
    assert addresses(steps[1].filter) == {"192.168.56.10"}


@pytest.mark.parametrize("body", [[5, [], ["10.0.0.1/99"], [80]], [5, [], [], [70000]], [5, [["a", 1]], [], []], ["x"], 7])
def test_an_invalid_filter_in_a_capture_is_damage(tmp_path: Path, run: Any, monkeypatch: pytest.MonkeyPatch, body: Any) -> None:
    monkeypatch.setattr("tracer.pipeline.live_source.POLL_SECONDS", 0.001)
    add_filter = "tracer.capture.record.buffer.RecordBuffer.add_filter"
    monkeypatch.setattr(add_filter, lambda b, _: b.add_record(Record.FILTER, "", body))
    steps = [RenewedFilter(0, frozenset(), Filter(ports=(OLD,)))]
    made = captures.capture(tmp_path / "a.k8st", [(request(1, OLD, 1000), [])], renewals=steps)
    status, out, err = run("-r", made.path)
    assert status == 23 and out == made.text["text"] and "could not be read" in err


def test_the_filter_stays_when_there_are_too_many_objects(
    tmp_path: Path, server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store is empty then: the Service is not said to be gone, and its packets are still traced."""
    session = Session()
    with OwnerResolver(ObjectSource(kubeconfig=server.kubeconfig(tmp_path)), Selectors(services=(SERVICE,)), Filter()) as kube:
        first = kube.filter()
        kube.attach(session.set_filter)
        monkeypatch.setattr(store_module, "MOST_ENTRIES", 1)
        server.put(renumbered(NEW))
        until(lambda: kube.cluster.store.is_full)
        assert kube.new_filter() is None and kube.filter() == first and OLD in kube.newest.ports
        assert kube.notes() == [FULL] and kube.notes() == []
        assert set(session.filters) == {first}


def test_a_service_is_not_missing_when_there_are_too_many_objects(
    tmp_path: Path, server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "MOST_ENTRIES", 1)
    kube = OwnerResolver(ObjectSource(kubeconfig=server.kubeconfig(tmp_path)), Selectors(services=(SERVICE,)), Filter())
    with pytest.raises(NoObjects, match="more than"), kube:
        pass


def test_notes_about_missing_objects_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    kube = OwnerResolver(ObjectSource(none=True), Selectors(), Filter())
    numbers = iter(range(1000))

    def missing(*_: object) -> None:
        raise NoSuchObject(f"There is no Service x ({next(numbers)} others).")

    monkeypatch.setattr("tracer.kube.owner_resolver.selectors.check", missing)
    for _ in range(1000):
        kube._miss()
    assert len(kube._said) == 64 and len(kube.notes()) == 1000
