# SPDX-License-Identifier: Apache-2.0
"""The HTML report in headless Chromium: its console stays empty, and it shows what it should, also with 10,000 packets."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support import captures, sample_packets
from tests.support.browser import ABSENT, CHROMIUM, Page
from tracer.export import CaptureInfo
from tracer.export.html import Html
from tracer.model.endpoints import Endpoints
from tracer.model.evidence import Evidence
from tracer.model.finding import Finding, FindingEvidence
from tracer.model.handshake import Cause, ConnectionAttempt, HandshakeVerdict
from tracer.model.hop import NatHop
from tracer.model.kube import Owner
from tracer.model.namespace_name import HOST, Netns
from tracer.model.packet import Packet
from tracer.model.rule import Rule, RuleHit, RuleLocation, RuleTrace
from tracer.model.summary import RunSummary
from tracer.util.frozen import evolve

pytestmark = pytest.mark.skipif(not CHROMIUM, reason=ABSENT)
HOSTILE = "<img src=x onerror=alert(1)>'\"><script>alert(2)</script>"
ABOUT = CaptureInfo("a.k8st", "node-1", "6.12.0", "--port 1", 0)
MOST_ELEMENTS = 2500
"""A page with 10,000 packets has fewer elements than this at any time."""


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    with Page() as made:
        yield made


RULE = Rule("ip", "nat", "KUBE-SEP-A", 2, "-p tcp -m tcp -j DNAT --to-destination 10.244.0.11:8080", "", "DNAT")
HIT = RuleHit((RuleLocation("PREROUTING", 1), RuleLocation("KUBE-SEP-A", 2)), RULE, "DNAT", Evidence.OBSERVED)
SERVICE = Owner("Service", "default", "http-proxy", "http", detail="NodePort 30285")


def with_rule(packet: Packet) -> Packet:
    """The packet, with the rule and the owner of its translations."""
    hops = [evolve(h, rule_trace=RuleTrace((HIT,)), owner=SERVICE) if isinstance(h, NatHop) else h for h in packet.hops]
    return replace(packet, hops=tuple(hops))


def from_port(packet: Packet, port: int, number: int) -> Packet:
    """The packet, sent by another port of the client."""
    ends = replace(packet.endpoints, sport=port)
    flow = packet.flow and replace(packet.flow, orig=ends, reply=replace(packet.flow.reply, dport=port))
    return replace(packet, endpoints=ends, flow=flow, number=number, time=packet.time + number * 1_000_000, seq=port)


def large(target: Path) -> None:
    """A report of 10,000 packets: 5,000 equal requests that are rejected, and 50 connections of 100 packets."""
    made = Html(target, ABOUT)
    bad, good = sample_packets.full_queue(), with_rule(sample_packets.node_port())
    for number in range(1, 5001):
        made.packet(syn := from_port(bad, 1024 + number, number))
        cause, attempt = Cause("accept queue full", "dropped: accept queue full 129/128"), ConnectionAttempt(syn, 0)
        made.syn(HandshakeVerdict(number, syn.time, syn.endpoints, syn.endpoints, HOST, cause, attempt=attempt))
    for number in range(5001, 10_001):
        packet = from_port(good, 40_000 + number % 50, number)
        made.packet(replace(packet, tcp_flags="PSH ACK" if number > 5050 else "SYN"))
    evidence = (FindingEvidence("packet", "one was dropped", "observed"),)
    made.finding(Finding("syn_dropped", (), "The queue is full.", evidence, "Look: `ss -lnt`.", "Accept.", numbers=(4000,)))
    made.close(RunSummary(packets=10_000, outcomes={"dropped": 5000, "delivered": 5000}))


@pytest.fixture(scope="module")
def large_report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("report") / "large.html"
    large(target)
    return target


def elements(page: Page) -> int:
    return int(page.run("document.querySelectorAll('*').length"))


def text(page: Page, name: str) -> str:
    return str(page.run(f"by('{name}').innerText"))


def scroll_to_end(page: Page, name: str) -> None:
    """Scrolls a list, and waits until its rows are drawn."""
    page.run(f"by('{name}').scrollTop = by('{name}').scrollHeight")
    page.run("new Promise(done => requestAnimationFrame(() => setTimeout(done)))")


def choose(page: Page, name: str, value: str) -> None:
    page.run(f"by('{name}').value = {value!r}; by('{name}').dispatchEvent(new Event('input'))")


def test_a_report_of_a_capture(page: Page, run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tracer.pipeline.live_source.POLL_SECONDS", 0.001)
    capture = captures.capture(tmp_path / "a.k8st", captures.some_batches(20), form="json")
    target = tmp_path / "report.html"
    assert run("export", capture.path, "--to", "html", target)[0] == 0
    page.open(f"{target.as_uri()}#packet=1")
    for shown in ("PREROUTING", "DNAT", "nginx"):
        assert shown in text(page, "way")
    assert "20 of 20 packets" in text(page, "count") and "Outcomes of 20 packets" in text(page, "tables")
    assert text(page, "lane-names").split() == ["beyond", "eth0", "node", "pod-a"]
    assert "µs" in text(page, "tables") and not page.run(r"/\d\.\d{3}/.test(by('tables').innerText)")
    assert page.messages == []


def test_10000_packets_are_usable(page: Page, large_report: Path) -> None:
    page.open(large_report.as_uri())
    assert "5,050 connections; 10,000 of 10,000 packets" in text(page, "count")
    assert page.run("connectionRows.items.length") < 60, "equal connections stand in one row"
    assert "\u00d75,000" in text(page, "list") and elements(page) < MOST_ELEMENTS
    page.run("by('grouped').checked = false; by('grouped').dispatchEvent(new Event('input'))")
    assert page.run("connectionRows.items.length") == 5050 and elements(page) < MOST_ELEMENTS
    scroll_to_end(page, "list")
    assert "192.168.56.1:40000" in text(page, "list"), "the end of the list is drawn when it is scrolled to"
    assert elements(page) < MOST_ELEMENTS
    page.run("connectionRows.pick(5049)")
    assert page.run("steps.items.length") == 100
    scroll_to_end(page, "steps")
    last = page.run("steps.items[99].packet.number")
    assert page.run("document.querySelector('#steps-99 .when').title").startswith(f"packet {last},")
    assert elements(page) < MOST_ELEMENTS
    page.run("by('grouped').checked = true; by('grouped').dispatchEvent(new Event('input'))")
    assert page.messages == []


def test_filters_by_service_rule_cause_outcome_and_text(page: Page, large_report: Path) -> None:
    page.open(large_report.as_uri())
    for name, value, connections in (
        ("by-service", "default/http-proxy:http", 50),
        ("by-rule", page.run("by('by-rule').options[1].value"), 50),
        ("by-cause", "accept queue full", 5000),
        ("by-outcome", "dropped", 5000),
    ):
        choose(page, name, value)
        assert page.run("shown.length") == connections, name
        assert f"{connections:,} connections of 5,050" in text(page, "count")
        page.run("by('clear').click()")
        assert page.run("shown.length") == 5050
    page.run("by('find').value = '192.168.56.1:2048'; applyFilter()")
    assert page.run("shown.length") == 1 and ":2048" in text(page, "ladder-head")
    page.run("by('find').value = 'there is no such thing'; applyFilter()")
    assert "No packet has all of this." in text(page, "ladder-head") and page.run("by('way').childElementCount") == 0
    assert page.messages == []


def test_a_finding_leads_to_its_packet(page: Page, large_report: Path) -> None:
    page.open(large_report.as_uri())
    choose(page, "by-outcome", "delivered")
    page.run("document.querySelector('[data-packet=\"4000\"]').click()")
    assert "packet 4000 " in text(page, "way") and ":5024" in text(page, "ladder-head")
    assert page.run("location.hash") == "#packet=4000" and page.run("by('by-outcome').value") == ""
    assert "accept queue full 129/128" in text(page, "steps")
    assert page.messages == []


def test_keys(page: Page, large_report: Path) -> None:
    page.open(large_report.as_uri())
    page.run("by('list').focus()")
    page.press("End")
    at = page.run("connectionRows.chosen")
    assert at == page.run("connectionRows.items.length") - 1 > 0
    page.press("ArrowUp")
    assert page.run("connectionRows.chosen") == at - 1
    page.press("Home", "Enter")
    assert page.run("connectionRows.items.length") > 5000, "Enter opens a group"
    page.press("Enter")
    page.press("End", "ArrowRight", "End")
    assert page.run("document.activeElement.id") == "steps"
    page.press("ArrowLeft", "p")
    assert page.run("[document.activeElement.id, connectionRows.chosen]") == ["list", 0]
    page.press("/")
    assert page.run("document.activeElement.id") == "find"
    page.run("by('find').value = '40001'; applyFilter()")
    page.press("Escape")
    assert page.run("[by('find').value, document.activeElement.id]") == ["", "list"]
    assert page.messages == []


def test_a_rule_and_a_command_can_be_copied(page: Page, large_report: Path) -> None:
    page.open(large_report.as_uri())
    page.run("window.copied = []; navigator.clipboard.writeText = async text => { copied.push(text); }")
    page.run("document.querySelector('#findings .copy').click()")
    choose(page, "by-outcome", "delivered")
    page.run("document.querySelector('#way .rule .copy').click()")
    command, rule = page.run("copied")
    assert command == "ss -lnt" and "-j DNAT" in rule
    assert page.messages == []


def test_hostile_names_are_shown_and_do_nothing(page: Page, tmp_path: Path) -> None:
    owner = Owner("Service", HOSTILE, HOSTILE, HOSTILE)
    packet = sample_packets.node_port()
    hops = [evolve(hop, netns=Netns(HOSTILE), in_iface=HOSTILE) for hop in packet.hops]
    packet = replace(packet, hops=tuple(hops), netns=Netns(HOSTILE), verdict=HOSTILE, dst_owner=owner)
    about = CaptureInfo(HOSTILE, HOSTILE, HOSTILE, HOSTILE, 0, lost={(HOSTILE, HOSTILE): 1})
    made = Html(tmp_path / "x.html", about)
    made.packet(packet)
    proof = (FindingEvidence(HOSTILE, HOSTILE, HOSTILE),)
    made.finding(Finding(HOSTILE, (), HOSTILE, proof, f"`{HOSTILE}`", HOSTILE, numbers=(packet.number,)))
    made.close(RunSummary(packets=1, outcomes={HOSTILE: 1}))
    page.open((tmp_path / "x.html").as_uri())
    for name in ("about", "findings", "lane-names", "steps", "way", "foot", "by-service"):
        assert HOSTILE in page.run(f"by('{name}').textContent"), name
    assert page.run("document.querySelectorAll('img').length") == 0 and page.run("document.scripts.length") == 2
    assert page.messages == []


@pytest.mark.parametrize("width", [1280, 420])
def test_nothing_is_wider_than_the_window(page: Page, large_report: Path, tmp_path: Path, width: int) -> None:
    page.resize(width, 900)
    try:
        page.open(large_report.as_uri())
        assert page.run("document.documentElement.scrollWidth") <= width
        page.screenshot(tmp_path / "shot.png")
        assert (tmp_path / "shot.png").read_bytes().startswith(b"\x89PNG")
    finally:
        page.resize(1280, 900)


def test_a_drop_is_shown_where_it_was(page: Page, tmp_path: Path) -> None:
    """A listener's drop is not one of the hook before it; a drop by netfilter is."""
    made = Html(tmp_path / "x.html", ABOUT)
    made.packet(sample_packets.full_queue())
    made.packet(sample_packets.rejected())
    made.close(RunSummary(packets=2, incomplete=1))
    for number, place in ((4, "socket"), (3, "OUTPUT")):
        page.open(f"{(tmp_path / 'x.html').as_uri()}#packet={number}")
        red = "[...document.querySelectorAll('.lane rect')].filter(r => r.getAttribute('fill') === 'var(--bad)')"
        assert page.run(f"{red}.map(r => r.nextSibling.textContent)") == [place]


def test_a_report_without_packets(page: Page, tmp_path: Path) -> None:
    Html(tmp_path / "x.html", ABOUT).close(RunSummary())
    page.open((tmp_path / "x.html").as_uri())
    assert "No packets." in text(page, "ladder-head") and "no packets" in text(page, "when")
    assert page.messages == []


def test_packets_without_ports(page: Page, tmp_path: Path) -> None:
    """Packets without ports, and one without hops, have their rows and lanes."""
    made = Html(tmp_path / "x.html", ABOUT)
    made.packet(sample_packets.ping())
    made.packet(replace(sample_packets.ping(), number=7, endpoints=Endpoints("fd00::1", 0, "fd00::2", 0), complete=False))
    made.close(RunSummary(packets=2, incomplete=1))
    page.open((tmp_path / "x.html").as_uri())
    assert "10.0.0.1 → 10.0.0.2" in text(page, "list") and "fd00::1 → fd00::2" in text(page, "list")
    assert "(incomplete)" in text(page, "list") and page.messages == []
