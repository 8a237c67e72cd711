# SPDX-License-Identifier: Apache-2.0
"""The HTML report: one file, nothing from the network, no markup from data. A browser reads it in test_report_browser.py."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from tests.support import captures, sample_packets
from tracer.analysis.result_table import ResultTable
from tracer.capture.redact.pseudonyms import Pseudonymizer
from tracer.export import CaptureInfo
from tracer.export.html import PARTS, SCRIPTS, SLICES, Html, OutcomeChart, _table
from tracer.model.counter_mismatch import CounterMismatch
from tracer.model.handshake import Cause, ConnectionAttempt, HandshakeVerdict
from tracer.model.namespace_name import HOST, Netns
from tracer.model.packet import Packet
from tracer.model.summary import RunSummary

ABOUT = CaptureInfo("a.k8st", "node-1", "6.12.0", "--port 1", 0)
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\x1b[31m\u202e@DATA@"


def written(target: Path, *packets: Packet, about: CaptureInfo = ABOUT, summary: RunSummary | None = None) -> str:
    made = Html(target, about)
    for packet in packets:
        made.packet(packet)
    made.close(summary or RunSummary(packets=len(packets)))
    return target.read_text(encoding="utf-8")


def data_of(page: str) -> Any:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)
    assert found
    return json.loads(found[1])


def test_the_report_has_everything_in_one_file(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tracer.pipeline.live_source.POLL_SECONDS", 0.001)
    capture = captures.capture(tmp_path / "a.k8st", captures.some_batches(20), form="json")
    target = tmp_path / "report.html"
    assert run("export", capture.path, "--to", "html", target)[0] == 0
    page = target.read_text()
    data = data_of(page)
    assert data["totals"]["packets"] == len(data["traffic"]["packets"]) == 20
    assert data["lost"] == [["table", "the ring buffer was full", 17]]
    assert sum(sum(s.values()) for s in data["timeline"]["slices"]) == 20
    assert sum(cause["count"] for cause in data["causes"]) == sum(capture.summary.causes.values()) > 0
    assert {c["cause"] for c in data["traffic"]["causes"]} == set(capture.summary.causes)


@pytest.mark.parametrize("redact", [False, True])
def test_a_redacted_report_has_the_same_causes(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, redact: bool) -> None:
    monkeypatch.setattr("tracer.pipeline.live_source.POLL_SECONDS", 0.001)
    capture = captures.capture(tmp_path / "a.k8st", captures.some_batches(20), form="json")
    target = tmp_path / "report.html"
    assert run("export", capture.path, "--to", "html", target, *(["--redact"] if redact else []))[0] == 0
    page = target.read_text()
    assert len(data_of(page)["traffic"]["causes"]) == sum(capture.summary.causes.values())
    assert ("192.168.56" in page) is not redact


def test_the_counters_of_a_redacted_report_have_no_names(tmp_path: Path) -> None:
    summary = RunSummary(differences=[CounterMismatch(Netns("checkout-0"), "ListenDrops", 3, 2)])
    page = written(tmp_path / "x.html", summary=Pseudonymizer().summary(summary))
    assert "ListenDrops" in page and "checkout-0" not in page


def test_the_page_loads_nothing_and_runs_one_script(tmp_path: Path) -> None:
    page = written(tmp_path / "x.html", sample_packets.node_port())
    assert not re.search(r"(src|href|action)\s*=\s*[\"']?\s*(https?:|//)|@import|url\((?!#)", page)
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    (script,) = re.findall(r"<script>(.*?)</script>", page, re.S)
    assert policy and policy[1].startswith("default-src 'none'")
    assert f"script-src 'sha256-{b64encode(sha256(script.encode()).digest()).decode()}'" in policy[1]
    assert not re.findall(r"@[A-Z]+@", page), "each mark of page.html was replaced"


def test_the_page_never_makes_markup_from_text() -> None:
    """Every text reaches the page as a text node or an attribute of a fixed name."""
    for name in SCRIPTS:
        source = (PARTS / f"{name}.js").read_text(encoding="utf-8")
        assert not re.search(r"(inner|outer|insertAdjacent)HTML|document\.write|\beval\b|new Function|srcdoc", source), name
    assert {f"{name}.js" for name in SCRIPTS} | {"page.html", "style.css"} == {path.name for path in PARTS.iterdir()}


def test_names_cannot_become_markup(tmp_path: Path) -> None:
    packet = sample_packets.node_port()
    packet = replace(packet, verdict=HOSTILE, iface=HOSTILE, netns=Netns(HOSTILE), protocol=HOSTILE)
    about = CaptureInfo(HOSTILE, HOSTILE, HOSTILE, HOSTILE, 0, lost={(HOSTILE, HOSTILE): 3})
    page = written(tmp_path / "x.html", packet, about=about)
    assert page.count("</script>") == 2 and "alert(1)</script>" not in page and "<img" not in page
    assert "\x1b" not in page and "\u202e" not in page
    data = data_of(page)
    assert data["traffic"]["packets"][0]["verdict"] == HOSTILE.replace("\x1b", "\\x1b").replace("\u202e", "\\u202e")


def test_counters_and_causes_are_at_the_head(tmp_path: Path) -> None:
    made = Html(tmp_path / "x.html", ABOUT)
    syn = sample_packets.node_port()
    made.packet(syn)
    for again in (0, 1):
        cause = Cause("accept queue full", "dropped: accept queue full")
        made.syn(HandshakeVerdict(1, 0, syn.endpoints, syn.endpoints, HOST, cause, again, attempt=ConnectionAttempt(syn, 0)))
    made.close(RunSummary(packets=1, differences=[CounterMismatch(Netns("pod-a"), "ListenDrops", 3, 2)]))
    data = data_of((tmp_path / "x.html").read_text())
    assert data["causes"] == [{"cause": "accept queue full", "good": False, "count": 2}]
    assert data["counters"] == [{"netns": "pod-a", "counter": "ListenDrops", "counted": 3, "explained": 2}]


def test_durations_of_statistics_are_in_ns() -> None:
    found = _table(ResultTable("t", ("way", "packets", "median us"), [("a > b", 3, 1.5)], "median us"))
    assert found["columns"] == ["way", "packets", "median"] and found["rows"] == [["a > b", 3, 1500.0]]
    assert (found["durations"], found["bar"]) == ([2], 2)


def test_a_timeline_never_grows_beyond_its_slices() -> None:
    line = OutcomeChart()
    for second in range(5000):
        line.add(10**18 + second * 10**9, "sent")
    chart = line.to_object()
    assert len(chart["slices"]) <= SLICES and sum(s["sent"] for s in chart["slices"]) == 5000
    assert chart["length"] * len(chart["slices"]) >= 4999 * 10**9
