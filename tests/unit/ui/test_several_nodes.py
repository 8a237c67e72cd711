# SPDX-License-Identifier: Apache-2.0
"""The screen of several nodes: a packet with its part on each node, findings with their node, saving, bounds."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from textual.pilot import Pilot

from tests.support import two_nodes
from tests.support.node_views import view
from tests.support.sample_findings import FOUND, VALIDATOR
from tests.support.screens import pilot, screen_lines, shown
from tests.unit.ui.test_kept_connections import verdict
from tracer.model.check import CheckResult
from tracer.model.endpoints import Endpoints
from tracer.model.joined_packet import Certainty, JoinedPacket, JoinKey, JoinLink, NodeView
from tracer.model.loss import LEFT_OUT, Loss
from tracer.model.packet import Packet
from tracer.model.summary import RunSummary
from tracer.ui.app import TraceScreen
from tracer.ui.feed import ScreenFeed
from tracer.ui.kept_connections import MOST_ALIASES, KeptConnections
from tracer.ui.node_results import NodeFinding
from tracer.ui.saved_packets import save

LINK = JoinLink(0, 1, JoinKey.HEADER, Certainty.OBSERVED)
HOSTILE = "[bold]node\x1b[2J\n"


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return two_nodes.make(tmp_path_factory.mktemp("captures"))


def both(number: int = 1, **values: object) -> JoinedPacket:
    """A packet that left node a for node b."""
    a, b = view("a", number=number, **values), view("b", 1000, "in", number=number, **values)  # type: ignore[arg-type]
    return JoinedPacket((a, b), (LINK,))


def live(*joined: JoinedPacket) -> ScreenFeed:
    feed = ScreenFeed()
    for name in ("a", "b"):
        feed.for_node(name).begin([CheckResult("bpf", "degraded", "no probe")], "--port 80", "6.12")
    for each in joined:
        feed.joined(each)
    return feed


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
def test_a_packet_has_its_part_on_each_node(paths: list[Path], size: tuple[int, int]) -> None:
    async def steps(driver: Pilot[None], screen: TraceScreen) -> None:
        lines, text = screen_lines(screen), shown(screen)
        assert all(len(line) == size[0] for line in lines)
        assert "2 nodes  5 packets  1 dropped" in lines[0]
        assert "Connections 3" in text and "192.168.56.1:40001 > 192.168.56.10:30080 delivered" in text
        assert "no answer" in text and "dropped by rule" in text
        assert "Packets 3" in text and "node-a > node-b" in text and "node-b > node-a" in text
        await driver.press("enter", "enter", *(["pagedown"] if size[0] == 80 else []))
        await driver.pause()
        text = shown(screen)
        assert "on node-b  +0.40 ms +-0.10 ms" in text
        assert "cause  node-a: answered by 10.244.2.8:8080 and acknowledged" in text
        assert "cause  node-b: accepted by" in text

    pilot(two_nodes.feed(paths), steps, size)


def test_the_filter_finds_nodes_and_views(paths: list[Path]) -> None:
    async def steps(driver: Pilot[None], screen: TraceScreen) -> None:
        for words, count in (("node-b", 3), ("dropped node-b", 1), ("10.244.1.0", 3), ("SYN-ACK", 2), ("node-c", 0)):
            await driver.press("slash", *("space" if letter == " " else letter for letter in words))
            await driver.pause()
            assert len(screen._connections.rows) == count, words
            await driver.press("escape")

    pilot(two_nodes.feed(paths), steps, (120, 40))


def test_a_finding_has_its_node_and_its_last_state() -> None:
    feed = live(both())
    feed.for_node("a").finding(FOUND)
    feed.for_node("b").finding(FOUND)
    lost = replace(FOUND, name="lost_between_nodes", key=("a", "b"))
    feed.for_node("a").finding(lost)
    feed.for_node("b").node_summary(RunSummary(findings=[replace(FOUND, packets=9)]))
    feed.summary(RunSummary(findings=[FOUND, replace(FOUND, packets=9), replace(lost, packets=5)]))

    async def steps(driver: Pilot[None], screen: TraceScreen) -> None:
        found = {(node, finding.name): finding.packets for node, finding in screen._findings.values()}
        assert found == {("a", FOUND.name): FOUND.packets, ("b", FOUND.name): 9, ("a", "lost_between_nodes"): 5}
        await driver.press("tab", "down", "enter")
        await driver.pause()
        assert f"!! b  {FOUND.name}" in shown(screen) and "node b" in shown(screen)

    pilot(feed, steps, (120, 40))


def test_what_is_missing_is_counted_for_all_nodes() -> None:
    feed = live(both())
    feed.for_node("a").lost(Loss("hook", 0, 3, "full"))
    feed.for_node("b").lost(Loss(LEFT_OUT, -1, 4, "full"))
    feed.for_node("b").not_sent({"packet": 40, "finding": 2})
    feed.for_node("b").note("something")

    async def steps(driver: Pilot[None], screen: TraceScreen) -> None:
        line = screen_lines(screen)[0]
        assert all(text in line for text in ("2 nodes", "1 packets", "3 lost", "4 left out", "42 not sent"))
        await driver.press("n")
        await driver.pause()
        assert "b: something" in shown(screen) and "a: bpf: no probe" in shown(screen)

    pilot(feed, steps, (120, 40))


def test_saved_packets_are_lines_of_several_nodes(tmp_path: Path) -> None:
    alone = JoinedPacket((view("b", way="drop"),))
    target, feed = tmp_path / "a.jsonl", live()
    save(str(target), [alone, both()], [NodeFinding("b", FOUND), NodeFinding("", FOUND)], feed)
    lines = [json.loads(line) for line in target.read_text().splitlines()]
    for line in lines:
        VALIDATOR.validate(line)
    assert [(line["type"], line.get("node")) for line in lines] == [
        ("run", "a"), ("run", "b"), ("packet", "b"), ("joined", None), ("finding", "b"), ("finding", None), ("summary", None),
    ]  # fmt: skip
    assert lines[-1]["packets"] == 2 and lines[-1]["outcomes"] == {"delivered": 1, "dropped": 1}


def test_names_of_nodes_are_escaped_and_no_markup() -> None:
    packet = view(HOSTILE, tcp_flags="SYN").packet
    feed = ScreenFeed()
    feed.for_node(HOSTILE).begin((), "", "")
    feed.for_node(HOSTILE).packet(packet)
    feed.for_node(HOSTILE).finding(FOUND)
    feed.for_node(HOSTILE).syn(verdict(packet, "no answer"))

    async def steps(driver: Pilot[None], screen: TraceScreen) -> None:
        text = shown(screen)
        assert "\x1b" not in text and r"[bold]node\x1b[2J\n" in text and r"on [bold]node\x1b[2J\n" in text
        await driver.press("tab", "enter")
        await driver.pause()
        assert r"node [bold]node\x1b[2J\n" in shown(screen)

    pilot(feed, steps, (120, 40))


def test_a_connection_is_one_on_all_its_nodes() -> None:
    """Node b sees other addresses, and alone it sees an answer in the opposite direction."""
    there = Endpoints("10.0.0.1", 9, "10.0.0.2", 80)
    joined = JoinedPacket((view("a"), view("b", 1000, "in", ends=there)), (LINK,))
    kept = KeptConnections()
    for each in (joined, JoinedPacket((view("b", ends=there.reversed),)), JoinedPacket((view("c", ends=there),))):
        kept.add(each)
    assert [connection.packets for connection in kept.in_order()] == [2, 1], "node c has another connection"


def test_aliases_go_with_their_connection_and_are_bounded() -> None:
    kept = KeptConnections(most=2)
    for number in range(MOST_ALIASES + 5):
        there = Endpoints("10.0.0.1", number + 1, "10.0.0.2", 80)
        kept.add(JoinedPacket((view("a"), view("b", 1000, "in", ends=there)), (LINK,)))
    (connection,) = kept.in_order()
    assert len(connection.aliases) == len(kept._aliases) == MOST_ALIASES
    for number in range(2):
        kept.add(JoinedPacket((view("d", ends=Endpoints("10.9.0.1", number + 1, "10.9.0.2", 80)),)))
    assert kept.evicted == 1 and not kept._aliases


def test_the_verdict_of_a_connection_is_that_of_the_node_that_knows_the_cause() -> None:
    kept, joined = KeptConnections(), both(tcp_flags="SYN")
    kept.add(joined)
    packets: list[Packet] = [each.packet for each in joined.views]
    kept.add_verdict(verdict(packets[1], "accept queue full"), "b")
    kept.add_verdict(verdict(packets[0], "no answer"), "a")
    kept.add_verdict(verdict(packets[0], "no answer"), "z")  # its connection is not kept
    (connection,) = kept.in_order()
    assert connection.verdict and connection.verdict.cause.name == "accept queue full"
    assert [(node, found.cause.name) for node, found in connection.verdicts_of(joined)] == [
        ("a", "no answer"), ("b", "accept queue full"),
    ]  # fmt: skip
    assert connection.verdicts_of(JoinedPacket((NodeView("z", packets[0]),))) == []
