# SPDX-License-Identifier: Apache-2.0
"""Statistics, differences and queries of captures; each statistic is tested by its counts."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.support import blobs, captures, sample_packets
from tracer.analysis import diff, stats
from tracer.analysis.durations import Distribution
from tracer.analysis.result_table import ResultTable
from tracer.capture.format.rulesets import encode_reading
from tracer.capture.format.schema import Record
from tracer.capture.replay.capture_reader import CaptureReader
from tracer.events.record import NOTHING
from tracer.model.loss import Loss
from tracer.rules.iptables.table_reader import TableRequest, TableSnapshot


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tracer.pipeline.live_source.POLL_SECONDS", 0.001)


@pytest.fixture
def capture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tracer.pipeline.live_source.POLL_SECONDS", 0.001)
    return captures.capture(tmp_path / "a.k8st", captures.some_batches(20)).path


def tables(run: Any, *args: str | Path) -> dict[str, list[dict[str, Any]]]:
    status, out, _ = run(*args, "-o", "json")
    assert status in (0, 1)
    return {t["title"]: t["rows"] for t in map(json.loads, out.splitlines())}


def test_statistics_of_a_capture(run: Any, capture: Path) -> None:
    found = tables(run, "stats", capture)
    assert found["Outcomes of 20 packets, 0 of them incomplete"] == [
        {"outcome": "delivered", "packets": 10}, {"outcome": "dropped", "packets": 10},
    ]  # fmt: skip
    assert found["Rules that decided"][0] | {"rule": ""} == {
        "packets": 9, "table": "filter", "place": "INPUT 1", "verdict": "DROP", "rule": "",
    }  # fmt: skip
    assert found["Where the rule is not known"] == [{"packets": 1, "why": "the rules have not been read"}]
    assert {"packets": 10, "end": "to", "who": "Service default/http-proxy, NodePort 30285"} in found[
        "Sources and destinations"
    ]
    assert found["SYNs that did not get through"][0]["SYNs"] == 10
    assert found["Lost"] == [{"events": 17, "probe": "table", "why": "the ring buffer was full"}]
    places = {row["way"]: row for row in found["From place to place"]}
    assert places["node PREROUTING > node POSTROUTING"]["median us"] == 3.0


def test_the_main_statistics_come_first(run: Any, capture: Path) -> None:
    titles = list(tables(run, "stats", capture))
    assert titles[0].startswith("Outcomes of") and titles.index("Rules that decided") < titles.index("From place to place")
    assert set(stats.in_order()) == set(stats.names())


def test_help_names_every_statistic(run: Any) -> None:
    text = run("stats", "--help")[1]
    assert all(name in text for name in stats.names())


def test_a_missing_rule_is_not_among_the_rules() -> None:
    one = stats.make("rules")
    for packet in sample_packets.every():
        one.feed(packet)
    found = {table.title: table for table in one.tables()}
    assert not any("policy" in str(row) for row in found["Rules that decided"].rows)


def test_causes_of_syns_and_no_decision_detail_as_a_place(run: Any, capture: Path) -> None:
    found = tables(run, "stats", capture)
    assert sum(row["SYNs"] for row in found["SYNs by cause"]) == 20
    assert not any("clue" in row["way"] for row in found["From place to place"])


def test_one_statistic_and_filters(run: Any, capture: Path) -> None:
    assert list(tables(run, "stats", capture, "--only", "verdicts", "--drops-only")) == [
        "Outcomes of 10 packets, 0 of them incomplete", "How they ended", "Lost",
    ]  # fmt: skip
    status, _, err = run("stats", capture, "--only", "nothing")
    assert status == 2 and "There is no statistic 'nothing': choose from latencies, owners," in err


def test_statistics_as_text(run: Any, capture: Path) -> None:
    status, out, _ = run("stats", capture)
    assert status == 0 and "Rules that decided" in out and "█" in out
    assert max(map(len, out.splitlines())) <= 200


@pytest.mark.parametrize("name", stats.names())
def test_every_statistic_takes_every_packet(name: str) -> None:
    one = stats.make(name)
    assert all(isinstance(t, ResultTable) for t in one.tables()), "also without packets"
    for packet in sample_packets.every():
        one.feed(packet)
    for table in one.tables():
        assert all(len(row) == len(table.columns) for row in table.rows)


def test_percentiles_are_right_to_a_tenth() -> None:
    spread = Distribution()
    for ns in range(1, 100_001):
        spread.add(ns)
    for share in (0.01, 0.5, 0.9, 0.99):
        assert spread.at(share) == pytest.approx(share * 100, rel=0.1)
    assert spread.at(1) == 100 and spread.most == 100_000


def test_findings_of_a_capture(run: Any, capture: Path, tmp_path: Path) -> None:
    status, out, _ = run("findings", capture)
    assert status == 10 and out.startswith("!! FINDING")
    assert out.endswith(" findings in 20 packets.\n1 dropped packet has no finding.\n")
    empty = captures.capture(tmp_path / "b.k8st", [(NOTHING, [])]).path
    assert run("findings", empty) == (0, "No findings in 0 packets.\n", "")


def test_an_answer_without_a_connection_counts_with_its_request() -> None:
    side, packet = diff.CaptureProfile(), replace(sample_packets.node_port_reply(), flow=None, tcp_flags="SYN ACK")
    side.feed(packet)
    assert list(side.ends) == [("TCP", packet.endpoints.src, packet.endpoints.sport)]


def test_two_captures_that_do_not_differ(run: Any, capture: Path, tmp_path: Path) -> None:
    other = captures.capture(tmp_path / "b.k8st", captures.some_batches(8)).path
    found = tables(run, "diff", capture, other)
    assert list(found) == ["Rules only in a.k8st", "Rules only in b.k8st", "Outcomes that differ", "What decided that differs"]
    assert run("diff", capture, other)[0] == 0 and not any(found.values())


def test_differences_are_shown(run: Any, capture: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.support.blobs import R

    monkeypatch.setattr(captures, "R", lambda *a, **k: R("ACCEPT", protocol=17))
    batches: list[tuple[Any, list[Loss]]] = [(captures.request(n, n * 1_000_000), []) for n in range(1, 9)]
    other = captures.capture(tmp_path / "b.k8st", [(captures.table_lookup(150), []), *batches, (batches[0][0][:0], [])]).path
    status, _, _ = run("diff", capture, other)
    found = tables(run, "diff", capture, other)
    assert status == 1
    assert [row["rule"] for row in found["Rules only in a.k8st"]] == ["-p tcp -j DROP"]
    assert [row["rule"] for row in found["Rules only in b.k8st"]] == ["-p udp -j ACCEPT"]
    assert found["Outcomes that differ"] == [
        {"asked for": "TCP 192.168.56.10:8080", "a.k8st": "dropped 10", "b.k8st": "not seen"}
    ]


def test_a_rule_that_cannot_be_decoded_is_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rules are decoded on demand: the table is read, and one of its targets has no length."""
    made = blobs.build({"INPUT": [blobs.R("LOG"), blobs.R("DROP")]})
    damaged = bytearray(made.data)
    target = damaged.index(b"LOG\0") - 2
    damaged[target : target + 2] = b"\0\0"
    body = encode_reading(TableSnapshot(TableRequest(1, "ip", "filter"), 0, 0, 0, made.table(), blob=damaged))
    capture = cast(CaptureReader, SimpleNamespace(meta={}, records=lambda: [(0, Record.READING, "a", body)]))
    assert diff.rules_of(capture) == {}


def test_a_profile_counts_by_the_requested_address() -> None:
    side = diff.CaptureProfile()
    for packet in sample_packets.every():
        side.feed(packet)
    ends = {end for end in side.ends if end[2] == 30285}
    assert len(ends) == 1, "a reply counts with its request"


def test_a_run_that_printed_timelines_is_counted_by_packet(run: Any, tmp_path: Path) -> None:
    follow = captures.capture(tmp_path / "f.k8st", captures.some_batches(20), follow=True).path
    assert "Outcomes of 20 packets, 0 of them incomplete" in tables(run, "stats", follow)
    assert tables(run, "diff", follow, captures.capture(tmp_path / "g.k8st", captures.some_batches(20)).path) == {
        title: []
        for title in ("Rules only in f.k8st", "Rules only in g.k8st", "Outcomes that differ", "What decided that differs")
    }
