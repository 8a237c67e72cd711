# SPDX-License-Identifier: Apache-2.0
"""Parts of a capture: prefetched answers, reduced objects, the CNI cache, time zones, display filters."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support import captures, sample_packets
from tests.support.builders import NODE, Trail
from tests.support.nodes import nodes
from tracer.capture.cni_journal import RecordedCniCache, ReplayedCniCache
from tracer.capture.format.codec import to_json
from tracer.capture.format.kube_objects import reduce_object, reduce_objects
from tracer.capture.format.schema import Record
from tracer.capture.journal import JournaledProcesses, ReplayedNamespaces
from tracer.capture.record.buffer import LONG_BATCH_SLOTS, Chunk, RecordBuffer
from tracer.capture.record.carry_over import MAX_READINGS, CarryOver
from tracer.capture.record.prefetch import Prefetcher
from tracer.events.record import DTYPE, SLOT
from tracer.findings.nodeport_host_process import PORTS
from tracer.findings.syn_dropped import RECYCLE
from tracer.kube import objects
from tracer.kube.cni_cache import Sandbox
from tracer.kube.store import ObjectStore
from tracer.model.filter import parse_host
from tracer.model.namespace_name import HOST, Netns
from tracer.node.namespace_questions import NamespaceInspector
from tracer.node.namespace_view import NamespaceReader
from tracer.node.node import HostReader
from tracer.pipeline.assembly import AssemblyParts, KernelNames
from tracer.rules.nftables.namespace_snapshots import GENERATIONS_KEPT
from tracer.rules.nftables.snapshot_cache import SnapshotCache
from tracer.rules.nftables.watcher import RulesetUpdate
from tracer.rules.rule_resolver import RuleResolver
from tracer.selection.display_filter import DisplayFilter
from tracer.util import timezone
from tracer.util.questions import Known, live


@pytest.mark.parametrize("mode", ["1.20.2-iptables-legacy", "1.36.2-nftables-nft"])
def test_reduced_objects_keep_every_field_that_is_read(mode: str) -> None:
    readers = {
        "Service": objects.service_ports, "EndpointSlice": objects.slice_endpoints, "Endpoints": objects.endpoints_endpoints,
        "Pod": objects.pod, "Node": objects.node,
    }  # fmt: skip
    seen = set()
    for one in nodes(mode):
        for body in objects.flatten(one.objects):
            if body.get("kind") in readers:
                seen.add(body["kind"])
                kept = reduce_object(body["kind"], body)
                read: Any = readers[body["kind"]]
                assert read(kept) == read(body) and objects.key(kept) == objects.key(body)
                assert len(json.dumps(kept)) <= len(json.dumps(body)) + 30
    assert len(seen) >= 3


def test_times_of_a_service_and_its_program_are_kept() -> None:
    """rules_behind_objects compares the time of a change with that of a packet."""
    meta = {
        "namespace": "shop", "name": "web", "creationTimestamp": "2026-11-28T15:04:05Z", "annotations": {"secret": "PASSWORD"},
        "labels": {"service.kubernetes.io/service-proxy-name": "other", "team": "blue"},
        "managedFields": [{"manager": "kubectl", "time": "2026-11-28T16:04:05Z", "fieldsV1": {"f:spec": {}}}],
    }  # fmt: skip
    body = {"kind": "Service", "metadata": meta, "spec": {}}
    kept = reduce_object("Service", body)
    assert objects.times(kept) == objects.times(body) and objects.times(kept)[1] > objects.times(kept)[0] > 0
    assert objects.is_for_kube_proxy(kept) is False
    assert not any(word in json.dumps(kept) for word in ("PASSWORD", "blue", "fieldsV1", "kubectl"))


def test_the_objects_of_a_list_are_kept() -> None:
    pod = {"kind": "Pod", "metadata": {"name": "a"}, "spec": {"containers": [{"env": [{"name": "PASSWORD"}], "ports": []}]}}
    found = reduce_objects("", [{"kind": "List", "items": [pod, {"kind": "Secret", "metadata": {"name": "s"}}]}])
    assert len(found) == 1 and "PASSWORD" not in json.dumps(found)


def test_a_replayed_store_is_the_same_store() -> None:
    changes: list[Any] = []
    first, replayed = ObjectStore(), ObjectStore()
    first.on_apply(changes.append)
    first.node = "node-1"
    first.load([captures.SERVICE])
    other = json.loads(json.dumps(captures.SERVICE)) | {"metadata": {"namespace": "shop", "name": "cart"}}
    first.apply("Service", other)
    first.replace("Service", iter([other]))
    first.delete("Service", other)
    first.apply("Service", other)
    for what, kind, bodies in changes:
        if what == "named":
            replayed.node = kind
        elif what == "load":
            replayed.load(bodies)
        elif what == "replace":
            replayed.replace(kind, bodies)
        else:
            getattr(replayed, what)(kind, bodies[0])
    assert replayed.node == "node-1" and replayed.services.values() == first.services.values()
    assert [p.name for p in replayed.services.values()] == ["cart"] and replayed.version == first.version


def test_an_answer_is_kept_when_it_differs_with_the_number_of_its_question() -> None:
    chunks: list[Chunk] = []
    buffer, answers = RecordBuffer(), iter(["", "a", "a", "b", "b"])
    buffer.start(chunks.append)
    nothing = np.zeros((0, SLOT), np.uint8)
    for turn in range(2):
        buffer.add_batch(turn, nothing, False)
        for _ in range(3 - turn):
            buffer.journal(("process", 5), lambda: next(answers), "")
    buffer.flush()
    kept = [(turn, body) for chunk in chunks for turn, kind, _, body in chunk.records if kind == Record.ANSWER]
    question = to_json(("process", 5))
    assert kept == [(1, [question, 1, ""]), (1, [question, 2, "a"]), (2, [question, 1, "b"])], "the first answer is always kept"


def test_complete_batches_are_given_to_the_writer_before_a_long_batch() -> None:
    """Explaining a long batch may take longer than a chunk may wait, and the tracer may be killed during that time."""
    chunks: list[Chunk] = []
    buffer = RecordBuffer()
    buffer.start(chunks.append)
    for number, count in enumerate((3, LONG_BATCH_SLOTS - 1, LONG_BATCH_SLOTS)):
        buffer.add_batch(number, np.zeros((count, SLOT), np.uint8), False)
    assert [[count for _, count, _ in chunk.batches] for chunk in chunks] == [[3, LONG_BATCH_SLOTS - 1]]


def test_an_answer_that_cannot_be_recorded_is_reported_and_does_not_end_the_run() -> None:
    buffer = RecordBuffer()
    odd = object()
    for number in (1, 2):
        assert buffer.journal(("odd", number), lambda: odd, object()) == Known(odd)
    assert buffer.warnings() == ["Answers about odd are not in the capture: a capture has no object."]
    assert buffer.warnings() == []


def test_the_nodes_namespace_is_the_one_with_its_inode() -> None:
    """A recorded name does not make another namespace the node's own."""

    def journal(question: Any, ask: Any, default: Any, requests: int = 1) -> Any:
        return Known("node")

    spaces = ReplayedNamespaces(journal, NODE, NODE, {NODE: HOST, 9: HOST}, lambda: 0)
    assert (spaces.name(NODE), spaces.name(9)) == ("node", "node (netns 9)")


def test_journaled_classes_ask_through_their_journal() -> None:
    questions: list[Any] = []

    def journal(question: Any, ask: Any, default: Any, requests: int = 1) -> Any:
        questions.append(question)
        return Known(default)

    assert JournaledProcesses(journal).owner(7) == (0, "")
    spaces = ReplayedNamespaces(journal, NODE, NODE, {NODE: HOST}, lambda: 0)
    assert (spaces.name(NODE), spaces.name(9), spaces.named()) == ("node", "netns 9", [NODE])
    assert questions == [("process", 7), ("netns", NODE), ("netns", 9)]


def result(directory: Path, name: str, address: str) -> None:
    args = [["K8S_POD_NAMESPACE", "shop"], ["K8S_POD_NAME", name]]
    body = {
        "kind": "cniCacheV1",
        "containerId": name,
        "networkName": "n",
        "cniArgs": args,
        "result": {"ips": [{"address": address}]},
    }
    (directory / name).write_text(json.dumps(body))


def test_a_reading_of_the_cni_cache_is_replayed_from_the_same_question_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tracer.kube.cni_cache.SCAN_INTERVAL_SECONDS", -1)
    kept: list[tuple[int, list[Sandbox]]] = []
    result(tmp_path, "cart", "10.0.0.1/24")
    live_cache = RecordedCniCache(lambda number, found: kept.append((number, found)), (tmp_path,))
    live_cache.begin_batch()
    first = live_cache.at("10.0.0.1")
    result(tmp_path, "web", "10.0.0.2/24")
    second = live_cache.at("10.0.0.2")
    assert first and second and [number for number, _ in kept] == [0, 2]
    replayed = ReplayedCniCache()
    replayed.begin_batch([kept[0]])
    replayed.begin_batch([kept[1]])
    assert replayed.at("10.0.0.2") is None, "the first question of that batch came before the reading"
    assert (replayed.at("10.0.0.2"), replayed.at("10.0.0.1")) == (second, first)


def test_the_carry_over_has_the_last_record_of_each_kind_and_key() -> None:
    carry_over = CarryOver()
    for turn in range(1, 40):
        carry_over.feed((turn, "answer", "process 5", json.dumps(turn).encode()))
        carry_over.feed((turn, "reading", "1 ip nat", b"{}"))
        carry_over.feed((turn, "nft", f"1 {turn}", b"{}"))
    carry_over.feed((40, "objects", "Service", b'["replace","Service",[{"kind":"Service","metadata":{"name":"a"}}]]'))
    carry_over.feed((41, "objects", "Service /a", b'["delete","Service",[{"kind":"Service","metadata":{"name":"a"}}]]'))
    carry_over.feed((42, "objects", "node-1", b'["named","node-1",[]]'))
    found = carry_over.records()
    assert [r[0] for r in found if r[1] == "answer"] == [39]
    assert [r[0] for r in found if r[1] == "reading"] == [r[0] for r in found if r[1] == "nft"]
    assert len([r for r in found if r[1] == "reading"]) == MAX_READINGS
    assert [r[3] for r in found if r[1] == "objects"] == [b'["named","node-1",[]]']


class Watcher:
    """A watcher that gets its updates from the test."""

    def __init__(self) -> None:
        self.updates: list[RulesetUpdate] = []
        self.requested: list[int] = []

    def changes(self) -> list[RulesetUpdate]:
        found, self.updates = self.updates, []
        return found

    def is_coming(self, inode: int, generation: int) -> bool:
        self.requested.append(generation)
        return False


def test_a_cache_changes_only_on_refresh() -> None:
    from tracer.model.rule import Ruleset
    from tracer.rules.nftables.snapshot import Snapshot

    def snapshot(number: int) -> Snapshot:
        return Snapshot(Ruleset("nft", 1, str(number), {}), number, {}, {})

    watcher = Watcher()
    view = SnapshotCache(watcher)
    assert view.is_coming(1, 7) and watcher.requested == [7]
    watcher.updates.append(RulesetUpdate(1, 7, False, snapshot(7)))
    assert view.find(1, 7) is None and view.is_coming(1, 7)
    view.refresh()
    assert view.find(1, 7) and not view.is_coming(1, 7) and not view.is_coming(1, 6) and view.is_coming(1, 8)
    watcher.updates += [RulesetUpdate(1, n, False, snapshot(n)) for n in range(8, 8 + GENERATIONS_KEPT)]
    view.refresh()
    assert len(view.near(1)) == GENERATIONS_KEPT and view.near(1)[0].number == 7 + GENERATIONS_KEPT and view.find(1, 7) is None
    watcher.updates.append(RulesetUpdate(1, 99, True))
    view.refresh()
    assert not view.is_coming(1, 100)


def test_recording_without_explaining_asks_the_questions_of_a_replay(tmp_path: Path) -> None:
    questions: list[Any] = []

    def journal(question: Any, ask: Any, default: Any, requests: int = 1) -> Any:
        questions.append(question)
        if question[0] == "process":
            return Known((question[1] % 1000, "nginx"))
        return Known(["pod-a"] if question[0] == "space names" else default)

    spaces, node = ReplayedNamespaces(journal, NODE, NODE, {}, lambda: 0), HostReader(tmp_path, tmp_path)

    def function(address: int) -> str:
        questions.append(("function", address))
        return ""

    processes = JournaledProcesses(journal)
    inspector, names = NamespaceInspector(NamespaceReader(spaces, processes), journal), KernelNames(function, {})
    parts = AssemblyParts(spaces, processes, inspector, node, journal, RuleResolver(), names, 0, set())
    prefetch = Prefetcher(parts, None)
    prefetch.feed(np.concatenate([captures.request(1, 1000), captures.refused(2, 2000)]))
    assert {("netns", 100), ("netns", 200), ("process", 48213), ("function", 0x10)} <= set(questions)
    settings = {("node", ("setting", PORTS.name, 0)), ("node", ("setting", RECYCLE.name, 213)), ("node", ("counters", 213))}
    assert {("node", ("bound", "tcp")), ("space", "pod-a", "net/ipv4/tcp_tw_recycle")} | settings <= set(questions)
    assert prefetch.events == 7 and [*prefetch.chunks(1 << 62)] == [*prefetch.chunks()] == []
    assert not prefetch.is_waiting_for_rules
    before = len(questions)
    prefetch.feed(np.zeros(0, DTYPE))
    assert len(questions) == before, "the node is read only every two seconds"
    prefetch.feed(captures.request(3, 3000, inode=48214))
    assert {("node", ("setting", RECYCLE.name, 214)), ("node", ("counters", 214))} <= set(questions), "a new listener, at once"
    assert ("node", "conntrack") not in questions[before:], "nothing was dropped"
    for _ in range(2):
        prefetch.feed(Trail(("10.0.0.1", 1, "10.0.0.2", 53), 4 << 8, 4000, protocol=17).hook("PREROUTING").batch)
    assert questions[before:].count(("node", "conntrack")) == 1, "the value before a loss, from the first UDP packet on"
    translated = [
        Trail(("10.0.0.1", 1, "10.0.0.2", port), number << 8, 5000, protocol=protocol, tcp_flags=flags, ct_info=state)
        .nat("PREROUTING", 1, ("10.0.0.1", 1, "10.244.0.11", 8080)).hook("FORWARD").batch
        for number, (port, protocol, flags, state) in enumerate(
            ((30306, 6, 16, 2), (30307, 6, 2, 2), (30308, 6, 16, 0), (30309, 17, 0, 2), (30310, 1, 0, 2)), start=5)
    ]  # fmt: skip
    prefetch.feed(np.concatenate(translated))
    ports = {question[1] for question in questions if question[0] == "node" and "connected" in question[1]}
    assert {("connected", "tcp", 30306), ("connected", "udp", 30309)} == {each for each in ports if each[2] > 30000}


@pytest.mark.parametrize(
    ("content", "rule"),
    [(b"TZif2...\nCET-1CEST,M3.5.0,M10.5.0/3\n", "CET-1CEST,M3.5.0,M10.5.0/3"), (b"TZif2..\n<+0530>-5:30\n", "<+0530>-5:30")],
)
def test_a_zone_is_recorded_as_its_rule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, rule: str) -> None:
    monkeypatch.delenv("TZ", raising=False)
    (tmp_path / "localtime").write_bytes(content)
    assert timezone.local_zone(tmp_path / "localtime") == rule


@pytest.mark.parametrize("name", ["Asia/Kolkata", "America/Lima", "UTC", "Pacific/Apia"])
def test_a_zone_without_a_file_is_recorded_as_its_offset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("TZ", name)
    time.tzset()
    before, zone = time.localtime(1e9)[:6], timezone.local_zone(tmp_path / "none")
    timezone.use(zone)
    assert abs(time.mktime(time.localtime(1e9)) - 1e9) < 1 and time.localtime(1e9)[3:5] == before[3:5]
    timezone.use("$(rm -rf /)")
    assert os.environ["TZ"] == zone


@pytest.mark.parametrize(
    ("display_filter", "outcome"),
    [
        (DisplayFilter(), True), (DisplayFilter(ports=(30285,)), True), (DisplayFilter(ports=(8080,)), True),
        (DisplayFilter(ports=(9,)), False),
        (DisplayFilter(hosts=(parse_host("192.168.56.0/24"),)), True),
        (DisplayFilter(hosts=(parse_host("10.244.0.11"),)), True),
        (DisplayFilter(hosts=(parse_host("fd00::/8"),)), False), (DisplayFilter(protocol="tcp", family=4), True),
        (DisplayFilter(family=6), False),
        (DisplayFilter(protocol="udp"), False), (DisplayFilter(netns=HOST), True),
        (DisplayFilter(netns=Netns("nowhere")), False),
        (DisplayFilter(iface="eth0"), True), (DisplayFilter(iface="wlan0"), False),
        (DisplayFilter(ports=(30285,), hosts=(parse_host("172.16.0.0/12"),)), False),
    ],
)  # fmt: skip
def test_the_display_filter_chooses_as_the_live_filter(display_filter: DisplayFilter, outcome: bool) -> None:
    assert display_filter(sample_packets.node_port()) is outcome


def test_a_live_run_asks_the_machine_each_time() -> None:
    answers = iter((1, 2))
    assert [live(("x",), lambda: next(answers), 0) for _ in range(2)] == [Known(1), Known(2)]
