# SPDX-License-Identifier: Apache-2.0
"""The Perfetto export, read back with the messages of Google's package."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.support import captures, sample_packets
from tests.support.sample_packets import BOOT, EPOCH
from tracer.export import CaptureInfo, _perfetto_tracks
from tracer.export._perfetto_tracks import TrackTable
from tracer.export.perfetto import FINDINGS, Perfetto
from tracer.model.evidence import Evidence
from tracer.model.finding import Finding, FindingEvidence
from tracer.model.hop import NatHop
from tracer.model.kube import Owner
from tracer.model.namespace_name import Netns
from tracer.model.packet import Packet
from tracer.model.rule import Rule, RuleHit, RuleLocation, RuleTrace
from tracer.model.summary import RunSummary
from tracer.util.frozen import evolve

messages: Any = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")
ABOUT = CaptureInfo("a.k8st", "node-1", "6.12.0", "--port 1", 0)
BEGIN, END, INSTANT = (getattr(messages.TrackEvent, f"TYPE_{n}") for n in ("SLICE_BEGIN", "SLICE_END", "INSTANT"))
RULE = Rule("ip", "nat", "KUBE-SEP-A", 2, "-p tcp -j DNAT --to-destination 10.244.0.11:8080", "", "DNAT")
HIT = RuleHit((RuleLocation("PREROUTING", 1), RuleLocation("KUBE-SEP-A", 2)), RULE, "DNAT", Evidence.OBSERVED)
SERVICE = Owner("Service", "default", "http-proxy", "http", detail="NodePort 30285")


def read(path: Path) -> Any:
    trace = messages.Trace()
    trace.ParseFromString(path.read_bytes())
    return trace.packet


def written(target: Path, *packets: Packet, findings: tuple[Finding, ...] = ()) -> Any:
    made = Perfetto(target, ABOUT)
    for packet in packets:
        made.packet(packet)
    for finding in findings:
        made.finding(finding)
    made.close(RunSummary())
    return read(target)


def explained() -> Packet:
    """A SYN to a NodePort, with the rule and the owner of its translations."""
    packet = sample_packets.node_port()
    hops = [evolve(h, rule_trace=RuleTrace((HIT,)), owner=SERVICE) if isinstance(h, NatHop) else h for h in packet.hops]
    return replace(packet, hops=tuple(hops))


def arguments(event: Any) -> dict[str, str | int]:
    return {a.name: a.string_value if a.HasField("string_value") else a.int_value for a in event.track_event.debug_annotations}


def tracks(trace: Any) -> dict[int, tuple[str, int]]:
    """(name, parent) of each track by its number."""
    return {
        p.track_descriptor.uuid: (p.track_descriptor.name, p.track_descriptor.parent_uuid)
        for p in trace
        if p.HasField("track_descriptor")
    }


def slices(trace: Any) -> Iterator[tuple[Any, int, int]]:
    """Each slice: its first packet, its beginning and its end, ns. Instants end when they begin."""
    open_slices: dict[int, Any] = {}
    for packet in trace:
        if not packet.HasField("track_event"):
            continue
        event = packet.track_event
        if event.type == BEGIN:
            assert event.track_uuid not in open_slices
            open_slices[event.track_uuid] = packet
        elif event.type == END:
            begin = open_slices.pop(event.track_uuid)
            yield begin, begin.timestamp, packet.timestamp
        else:
            yield packet, packet.timestamp, packet.timestamp
    assert not open_slices


def assert_no_overlap(trace: Any) -> None:
    by_track: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for packet, begin, end in slices(trace):
        assert begin <= end
        if packet.track_event.type == BEGIN:
            by_track[packet.track_event.track_uuid].append((begin, end))
    for found in by_track.values():
        found.sort()
        assert all(before[1] <= after[0] for before, after in pairwise(found))


def test_every_hop_is_read_back(tmp_path: Path) -> None:
    packet = explained()
    trace = written(tmp_path / "a.pftrace", packet)
    found = list(slices(trace))
    assert [end for _, _, end in found] == [hop.time for hop in packet.hops]
    assert [begin for _, begin, _ in found] == [packet.hops[0].time, *(hop.time for hop in packet.hops[:-1])]
    assert all(p.timestamp_clock_id == messages.BUILTIN_CLOCK_MONOTONIC for p, _, _ in found)
    names = tracks(trace)
    for (event, _, _), hop in zip(found, packet.hops, strict=True):
        parent = names[event.track_event.track_uuid][1]
        assert names[parent] == (hop.netns, 0)
        assert list(event.track_event.categories) == [hop.kind.value]
        assert arguments(event)["packet"] == packet.number and arguments(event)["evidence"] == hop.evidence.value
    (nat, *_) = (event for event, _, _ in found if event.track_event.name == "DNAT")
    assert arguments(nat) | {"packet": 0} == {
        "packet": 0, "packet.ends": "TCP 192.168.56.1:40812 -> 192.168.56.10:30285", "packet.flags": "SYN",
        "hook": "PREROUTING", "evidence": "observed", "nat.before": "192.168.56.1:40812 -> 192.168.56.10:30285",
        "nat.after": "192.168.56.1:40812 -> 10.244.0.11:8080", "chain path": "PREROUTING 1 > KUBE-SEP-A 2", "rule": RULE.text,
        "owner": "Service default/http-proxy:http, NodePort 30285",
    }  # fmt: skip
    last = arguments(found[-1][0])
    assert (last["packet.verdict"], last["packet.outcome"]) == (packet.verdict, "delivered")


def test_a_packet_has_one_flow_which_ends_with_it(tmp_path: Path) -> None:
    trace = written(tmp_path / "a.pftrace", *sample_packets.every())
    flows: dict[int, list[str]] = defaultdict(list)
    for packet, _, _ in slices(trace):
        event = packet.track_event
        assert len(event.flow_ids) + len(event.terminating_flow_ids) == 1
        for kind in ("flow_ids", "terminating_flow_ids"):
            for number in getattr(event, kind):
                assert number == arguments(packet)["packet"]
                flows[number].append(kind)
    assert set(flows) == {p.number for p in sample_packets.every() if p.hops}
    assert all(kinds.count("terminating_flow_ids") == 1 for kinds in flows.values())


def test_the_clock_of_the_hops_is_tied_to_wall_time(tmp_path: Path) -> None:
    first = written(tmp_path / "a.pftrace", sample_packets.node_port())[0]
    assert [(c.clock_id, c.timestamp) for c in first.clock_snapshot.clocks] == [
        (messages.BUILTIN_CLOCK_MONOTONIC, BOOT),
        (messages.BUILTIN_CLOCK_REALTIME, EPOCH),
    ]
    assert first.clock_snapshot.primary_trace_clock == messages.BUILTIN_CLOCK_REALTIME
    assert first.sequence_flags == messages.TracePacket.SEQ_INCREMENTAL_STATE_CLEARED


def test_packets_that_overlap_have_tracks_of_the_same_name(tmp_path: Path) -> None:
    packets = []
    for number in range(40):
        later = tuple(evolve(h, time=h.time + (39 - number) * 7_000) for h in explained().hops)
        packets.append(replace(explained(), number=number + 1, hops=later))
    trace = written(tmp_path / "a.pftrace", *packets)
    assert_no_overlap(trace)
    names = [(name, parent) for name, parent in tracks(trace).values() if parent]
    assert len(names) > len(set(names)), "there are several tracks of one interface"
    assert sum(1 for _ in slices(trace)) == sum(len(p.hops) for p in packets)


def test_a_capture(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tracer.pipeline.live_source.POLL_SECONDS", 0.001)
    capture = captures.capture(tmp_path / "a.k8st", captures.some_batches(20), form="json")
    assert run("export", capture.path, "--to", "perfetto", tmp_path / "a.pftrace")[0] == 0
    trace = read(tmp_path / "a.pftrace")
    assert_no_overlap(trace)
    assert {arguments(p)["packet"] for p, _, _ in slices(trace) if "packet" in arguments(p)} == set(range(1, 21))
    assert {name for name, parent in tracks(trace).values() if not parent} >= {"node", "pod-a"}


def test_a_finding_is_an_instant_with_the_flows_of_its_packets(tmp_path: Path) -> None:
    proof = (FindingEvidence("packet", "one was dropped", "observed"),)
    finding = Finding(
        "syn_dropped", (), "The queue is full.", proof, "look", "accept", packets=2, first=EPOCH + 5, numbers=(1, 2)
    )
    trace = written(tmp_path / "a.pftrace", sample_packets.node_port(), findings=(finding,))
    (found,) = (p for p, _, _ in slices(trace) if p.track_event.name == "syn_dropped")
    assert (found.timestamp, found.track_event.type, list(found.track_event.flow_ids)) == (BOOT + 5, INSTANT, [1, 2])
    assert tracks(trace)[found.track_event.track_uuid] == (FINDINGS, 0)
    assert arguments(found) == {
        "cause": "The queue is full.", "check": "look", "cure": "accept", "packets": 2,
        "proof.0": "packet: one was dropped (observed)", "certain": "yes",
    }  # fmt: skip


def test_a_copy_is_an_instant(tmp_path: Path) -> None:
    packet = sample_packets.no_socket()
    found = [p.track_event.type for p, _, _ in slices(written(tmp_path / "a.pftrace", packet))]
    assert found == [INSTANT, INSTANT] and packet.hops[1].clone


def test_hostile_names_are_escaped(tmp_path: Path) -> None:
    packet = explained()
    hops = tuple(evolve(h, netns=Netns("a\x1b\udcff\u202e"), in_iface="e\n") for h in packet.hops)
    trace = written(tmp_path / "a.pftrace", replace(packet, hops=hops, verdict="\x1b[31m", netns=Netns("")))
    texts = str(list(tracks(trace).values())) + str([arguments(p) for p, _, _ in slices(trace)])
    assert "a\\\\x1b\\\\xff\\\\u202e" in texts and "\\x1b'" not in texts and texts.isprintable()


def test_there_is_a_most_of_tracks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_perfetto_tracks, "MOST_TRACKS", 4)
    monkeypatch.setattr(_perfetto_tracks, "MOST_OVERLAPPING", 2)
    made: list[tuple[int, str, int]] = []
    table = TrackTable(lambda number, name, parent: made.append((number, name, parent)))
    assert [table.free("node", "eth0", 0, 9) for _ in range(3)] == [2, 3, None]
    assert table.free("node", "eth0", 9, 12) == 2, "a slice may begin where another ends"
    assert (table.free("node", "eth1", 0, 9), table.free("node", "eth2", 0, 9)) == (4, None)
    assert table.first("node", "eth2", 5) == 1 and table.namespace("pod-a") == 1
    assert made == [(1, "node", 0), (2, "eth0", 1), (3, "eth0", 1), (4, "eth1", 1)]


def test_nothing_was_traced(tmp_path: Path) -> None:
    proof = (FindingEvidence("object", "it is so", "Kubernetes API"),)
    finding = Finding("nodeport_twice", (), "cause", proof, "check", "cure", packets=0)
    assert len(written(tmp_path / "a.pftrace", sample_packets.ping(), findings=(finding,))) == 0
