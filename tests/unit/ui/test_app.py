# SPDX-License-Identifier: Apache-2.0
"""The screen: panes, filter, pause, choosing, sizes, hostile names, errors, the end."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest
from textual.pilot import Pilot

from tests.support import sample_packets as samples
from tests.support.sample_findings import FOUND
from tests.support.screens import feed_of, numbered, pilot, recorded_feed, screen_lines, shown, until
from tracer.errors import DamagedCapture
from tracer.model.check import CheckResult
from tracer.model.endpoints import Endpoints
from tracer.model.hop import Drop
from tracer.model.loss import LEFT_OUT, Loss
from tracer.model.netfilter import Verdict
from tracer.model.packet import Packet
from tracer.packets.joined_views import first_packet
from tracer.pipeline.shutdown import StopRequest
from tracer.ui import app
from tracer.ui.app import TraceScreen
from tracer.ui.dialogs import KEYS
from tracer.ui.feed import ScreenFeed

SIZES = [(80, 24), (120, 40)]
HOSTILE = [
    "[bold red]x[/]",
    "[/]",
    "[@click=app.quit]quit[/]",
    "\x1b[2J",
    "\x1b]52;c;aGk=\x07",
    "a\nb",
    "\u202eabc",
    "界" * 40,
    "",
]


@pytest.fixture(scope="module")
def recording() -> ScreenFeed:
    return recorded_feed("B")


@pytest.mark.parametrize("size", SIZES)
def test_panes_of_a_recorded_node(recording: ScreenFeed, size: tuple[int, int]) -> None:
    feed = copied(recording)

    async def steps(driver: Pilot[None], screen: TraceScreen) -> None:
        lines = screen_lines(screen)
        assert len(lines) == size[1] and all(len(line) == size[0] for line in lines)
        assert "157 packets" in lines[0] and "14 dropped" in lines[0] and "7 findings" in lines[0]
        text = shown(screen)
        for title in ("Connections 36", "Findings 7", "Packets 2", "Path of the packet"):
            assert title in text
        assert "10.77.0.1:46070 > 10.77.0.7:31443 no endpoints" in text
        assert "REJECT with icmp-port-unreachable" in text and "nodeport_host_process" in text
        assert all(key in lines[-1] for key, word, _ in KEYS if word), "the last line has the keys"

    pilot(feed, steps, size)


def copied(feed: ScreenFeed) -> ScreenFeed:
    """A feed with the same results, for another screen."""
    if not hasattr(feed, "first"):
        feed.first = feed.packets.read(), feed.verdicts.read(), feed.findings.read()  # type: ignore[attr-defined]
    made = ScreenFeed()
    made.counts, made.title, made.totals = feed.counts, feed.title, feed.totals
    packets, verdicts, findings = feed.first  # type: ignore[attr-defined]
    made.packets.extend(packets)
    made.verdicts.extend(verdicts)
    made.findings.extend(findings)
    made.end()
    return made


def test_choosing_shows_the_path_and_the_cause(recording: ScreenFeed) -> None:
    async def steps(driver: Pilot[None], screen: TraceScreen) -> None:
        await driver.press("enter", "enter", "end")
        await driver.pause()
        assert screen.focused is screen._path and "no endpoint: rejected in ip filter/INPUT" in shown(screen)
        await driver.press("escape", "down")
        await driver.pause()
        assert "10.77.0.1:48094 -> 10.77.0.7:30125" in shown(screen), "the next connection"
        await driver.press("tab", "enter")
        await driver.pause()
        assert "FINDING nodeport_host_process" in shown(screen) and "because" in shown(screen)

    pilot(copied(recording), steps, (120, 40))


def test_all_hops_on_request(recording: ScreenFeed) -> None:
    async def steps(driver: Pilot[None], screen: TraceScreen) -> None:
        before = screen._path.line_count()
        await driver.press("v")
        assert screen._path.line_count() > before
        await driver.press("v")
        assert screen._path.line_count() == before

    pilot(copied(recording), steps)


@pytest.mark.parametrize(
    ("words", "most"),
    [
        ("31443 10.77.0.1", 10), ("pg-main", 10), ("KUBE-EXTERNAL-SERVICES", 20), ("rejected", 20), ("slow accept", 5),
        ("shop/checkout", 30),
    ],
)  # fmt: skip
def test_filter_as_you_type(recording: ScreenFeed, words: str, most: int) -> None:
    async def steps(driver: Pilot[None], screen: TraceScreen) -> None:
        await driver.press("slash", *("space" if letter == " " else letter for letter in words))
        await driver.pause()
        found = len(screen._connections.rows)
        assert 0 < found < most and f"Connections {found} of 36" in shown(screen)
        assert len(screen._findings) == 7, "findings are never hidden"
        await driver.press("escape")
        await driver.pause()
        assert len(screen._connections.rows) == 36 and screen.focused is screen._connections

    pilot(copied(recording), steps)


def test_a_filter_without_a_match() -> None:
    async def steps(driver: Pilot[None], screen: TraceScreen) -> None:
        await driver.press("slash", *"nothing")
        await driver.pause()
        assert "no packet matches the filter" in shown(screen) and "Path of the packet" in shown(screen)

    pilot(feed_of(samples.every()), steps)


def test_keys_typed_into_the_filter_are_text() -> None:
    async def steps(driver: Pilot[None], screen: TraceScreen) -> None:
        await driver.press("slash", *"qpsv")
        assert screen._filter.value == "qpsv" and not screen._head.is_paused and screen.is_running

    pilot(feed_of(samples.every()), steps)


def test_pause_stops_the_view_and_counts_what_waits() -> None:
    feed = feed_of(numbered(3))

    async def steps(driver: Pilot[None], screen: TraceScreen) -> None:
        await driver.press("p")
        for packet in numbered(10)[3:]:
            feed.packet(packet)
        await until(driver, lambda: "PAUSED: 7 wait" in shown(screen))
        assert screen.kept.packets == 3 and "Packets 3" in shown(screen) and "10 packets" in screen_lines(screen)[0]
        await driver.press("p")
        await until(driver, lambda: "Packets 10" in shown(screen))
        assert "PAUSED" not in shown(screen)

    pilot(feed, steps)


def test_a_long_pause_says_what_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tracer.ui.feed.MOST_WAITING", 5)
    feed = feed_of(numbered(3))

    async def steps(driver: Pilot[None], screen: TraceScreen) -> None:
        await driver.press("p")
        for packet in numbered(15)[3:]:
            feed.packet(packet)
        await until(driver, lambda: "5 wait, 7 older ones are not kept" in shown(screen))
        await driver.press("p")
        await until(driver, lambda: screen.kept.packets == 8)
        assert "15 packets" in screen_lines(screen)[0] and "7 not kept" in screen_lines(screen)[0]

    pilot(feed, steps)


def test_new_packets_do_not_move_the_chosen_row() -> None:
    feed = feed_of(numbered(40, 40))

    async def steps(driver: Pilot[None], screen: TraceScreen) -> None:
        await driver.press("down", "down", "down")
        chosen = screen._connections.chosen
        for packet in numbered(80, 80)[40:]:
            feed.packet(packet)
        await until(driver, lambda: "Connections 80" in shown(screen))
        assert screen._connections.chosen is chosen
        await driver.press("end")
        feed.packet(replace(numbered(1)[0], connection=99, identity=999 << 8))
        await until(driver, lambda: "Connections 81" in shown(screen))
        newest = screen._connections.chosen
        assert newest and first_packet(newest.start).connection == 99, "after End the newest one is followed"

    pilot(feed, steps)


def test_only_visible_lines_are_drawn() -> None:
    drawn = []
    feed = feed_of(numbered(900, 900))

    async def steps(driver: Pilot[None], screen: TraceScreen) -> None:
        draw = screen._connections._draw
        screen._connections._draw = lambda row, width: drawn.append(row) or draw(row, width)  # type: ignore[func-returns-value]
        feed.packet(numbered(901, 901)[-1])
        await until(driver, lambda: "Connections 901" in shown(screen))
        assert 0 < len(set(drawn)) < 24

    pilot(feed, steps)


def test_bounds_are_kept_and_counted() -> None:
    feed = feed_of(numbered(1_200, 1_200))

    async def steps(driver: Pilot[None], screen: TraceScreen) -> None:
        assert len(screen.kept) == screen.kept.packets == 1_000 and screen.kept.evicted == 200
        await until(driver, lambda: "Connections 1,000, 200 older not kept" in shown(screen))
        assert "1,200 packets" in shown(screen) and "200 not kept" in shown(screen)

    pilot(feed, steps, (120, 40))


def test_losses_and_notes_are_shown() -> None:
    feed = feed_of(samples.every())
    feed.begin([CheckResult("reset6", "degraded", "no REJECT: it is not there")], "", "")
    feed.lost(Loss("hook", 0, 17, "the ring buffer was full"))
    feed.lost(Loss(LEFT_OUT, 0, 4, "the ring buffer was nearly full"))

    async def steps(driver: Pilot[None], screen: TraceScreen) -> None:
        await until(driver, lambda: "17 lost" in shown(screen) and "4 left out" in shown(screen))
        assert "1 note (n): reset6: no REJECT" in shown(screen)
        await driver.press("n")
        await until(driver, lambda: "Notes" in shown(screen))
        await driver.press("n", "escape")
        await until(driver, lambda: "Notes" not in shown(screen) and "reset6" not in shown(screen))

    pilot(feed, steps)


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("size", SIZES)
def test_hostile_names_are_shown_not_interpreted(name: str, size: tuple[int, int]) -> None:
    packet = hostile_packet(name)
    feed = feed_of([packet])
    feed.finding(replace(FOUND, name="nodeport_host_process", cause=name, check=name, cure=name))
    feed.note(name)
    feed.error = DamagedCapture(name)

    async def steps(driver: Pilot[None], screen: TraceScreen) -> None:
        await driver.press("v")
        await driver.pause()
        texts = [shown(screen)]
        await driver.press("tab", "enter", "s", "escape")
        await driver.pause()
        texts.append(shown(screen))
        for text in texts:
            assert not any(ord(c) < 32 for c in text.replace("\n", "")) and "\u202e" not in text
        if name.startswith("["):
            assert name[:12] in texts[0], "markup is text"
        assert screen.is_running and not screen.return_code

    pilot(feed, steps, size)


def hostile_packet(name: str) -> Packet:
    packet = samples.with_hop(samples.node_port(), 7, netns=name)
    drop = samples.hop(130, "drop", drop=Drop(name, name), verdict=Verdict.DROP.value)
    packet = samples.with_hops(packet, drop)
    return replace(
        packet, verdict=name, iface=name, protocol=name, tcp_flags=name, endpoints=Endpoints(name, 1, name, 2), flow=None
    )


def test_the_error_of_the_run_is_shown_and_the_screen_stays() -> None:
    feed = feed_of(samples.every())

    async def steps(driver: Pilot[None], screen: TraceScreen) -> None:
        feed.end(DamagedCapture("A part of a.k8st could not be read."))
        await until(driver, lambda: "The run has ended: A part of a.k8st could not be read." in shown(screen))
        assert screen.is_running and "ended" in screen_lines(screen)[0]

    pilot(feed, steps)


@pytest.mark.parametrize("key", ["q", "ctrl+c", "ctrl+q"])
def test_a_key_ends_the_screen_and_the_run(key: str) -> None:
    stop = StopRequest(0)

    async def steps(driver: Pilot[None], screen: TraceScreen) -> None:
        await driver.press(key)
        await until(driver, lambda: not screen.is_running)

    pilot(feed_of(samples.every()), steps, stop=stop)
    assert stop.is_requested


@pytest.mark.parametrize("before", ["slash", "question_mark", "s"])
def test_ctrl_c_ends_it_from_everywhere(before: str) -> None:
    async def steps(driver: Pilot[None], screen: TraceScreen) -> None:
        await driver.press(before)
        await driver.press("ctrl+c")
        await until(driver, lambda: not screen.is_running)

    pilot(feed_of(samples.every()), steps)


def test_a_signal_ends_the_screen() -> None:
    stop = StopRequest(0)

    async def steps(driver: Pilot[None], screen: TraceScreen) -> None:
        stop.request()
        await until(driver, lambda: not screen.is_running)

    pilot(feed_of(samples.every()), steps, stop=stop)


def test_help_lists_every_key(recording: ScreenFeed) -> None:
    async def steps(driver: Pilot[None], screen: TraceScreen) -> None:
        await driver.press("question_mark")
        await driver.pause()
        text = shown(screen)
        assert all(meaning.split(":")[0].split(";")[0] in " ".join(text.split()) for _, _, meaning in KEYS)
        await driver.press("escape")
        await driver.pause()
        assert "Connections" in shown(screen)

    pilot(copied(recording), steps, (120, 40))


@pytest.mark.parametrize("size", SIZES)
def test_help_fits(size: tuple[int, int]) -> None:
    async def steps(driver: Pilot[None], screen: TraceScreen) -> None:
        await driver.press("question_mark")
        await driver.pause()
        assert "Keys" in shown(screen) and "Esc closes this window." in shown(screen)

    pilot(feed_of([]), steps, size)


def test_resize() -> None:
    async def steps(driver: Pilot[None], screen: TraceScreen) -> None:
        for columns, lines in (*SIZES, (40, 10), (200, 60), (80, 24)):
            await driver.resize_terminal(columns, lines)
            await driver.pause()
            text = screen_lines(screen)
            assert len(text) == lines and all(len(line) == columns for line in text)
            findings, connections = screen._finding_rows.region, screen._connections.region
            assert (findings.y == connections.y) is (columns >= app.WIDE_COLUMNS), "side by side where there is room"

    pilot(feed_of(samples.every()), steps)


def test_the_screen_of_a_run_without_packets() -> None:
    feed = feed_of([])

    async def steps(driver: Pilot[None], screen: TraceScreen) -> None:
        assert "waiting for packets" in shown(screen) and "none so far" in shown(screen)
        await driver.press("down", "end", "enter", "tab", "enter", "pagedown", "home")
        feed.end()
        await until(driver, lambda: "no packet came" in shown(screen))

    pilot(feed, steps)


def test_an_error_of_the_screen_ends_the_run_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stop, feed = StopRequest(0), feed_of([])
    screen = TraceScreen(feed, stop)
    monkeypatch.setattr(screen, "_draw_panes", lambda: 1 / 0)

    async def run() -> None:
        await screen.run_async(headless=True, size=(80, 24))

    asyncio.run(run())
    assert isinstance(screen.failure, ZeroDivisionError) and stop.is_requested
    assert "Traceback" not in "".join(capsys.readouterr())


@pytest.mark.parametrize(("downs", "packets"), [(0, 1), (1, 6), (2, 1)])
def test_save(tmp_path: Path, downs: int, packets: int) -> None:
    """What the filter shows, everything, the chosen connection; an existing file stays as it is."""
    target = tmp_path / "a.jsonl"

    async def steps(driver: Pilot[None], screen: TraceScreen) -> None:
        await driver.press("slash", *"fd00", "enter")
        await driver.press("s", *["down"] * downs, "tab")
        screen.screen.query_one("#name").value = str(target)  # type: ignore[attr-defined]
        await driver.press("enter")
        await until(driver, lambda: "are in" in screen._head.message)
        lines = [json.loads(line) for line in target.read_text().splitlines()]
        assert [line["type"] for line in lines].count("packet") == packets == lines[-1]["packets"]
        assert target.stat().st_mode & 0o777 == 0o600
        before = target.read_bytes()
        await driver.press("s", "tab")
        screen.screen.query_one("#name").value = str(target)  # type: ignore[attr-defined]
        await driver.press("enter")
        await until(driver, lambda: "exists already" in shown(screen))
        assert target.read_bytes() == before

    pilot(feed_of(samples.every()), steps, (120, 40))


def test_escape_saves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    async def steps(driver: Pilot[None], screen: TraceScreen) -> None:
        await driver.press("s")
        await driver.pause()
        assert "never overwritten" in shown(screen)
        await driver.press("escape")
        await driver.pause()
        assert "Connections" in shown(screen)

    pilot(feed_of(samples.every()), steps)
    assert list(tmp_path.iterdir()) == []
