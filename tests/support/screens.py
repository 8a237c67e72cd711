# SPDX-License-Identifier: Apache-2.0
"""The screen of `ui` without a terminal: a feed of packets, keys, and what is shown."""

from __future__ import annotations

import asyncio
import lzma
import tempfile
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from pathlib import Path

from textual.pilot import Pilot

from tests.support import sample_packets as samples
from tracer.capture.replay.runner import ReplayRequest
from tracer.commands.read import replayed
from tracer.model.endpoints import Endpoints
from tracer.model.packet import Packet
from tracer.pipeline.shutdown import StopRequest
from tracer.ui.app import TraceScreen
from tracer.ui.feed import ScreenFeed

ROOT = Path(__file__).resolve().parents[2]
WAIT_SECONDS = 30.0
Steps = Callable[[Pilot[None], TraceScreen], Awaitable[None]]


def feed_of(packets: Iterable[Packet]) -> ScreenFeed:
    """A feed with these packets, of a run that goes on."""
    feed = ScreenFeed()
    feed.begin((), "--port 30285", "6.12.0")
    for packet in packets:
        feed.packet(packet)
    return feed


def recorded_feed(name: str) -> ScreenFeed:
    """The feed of a capture of tests/data/real that was read to its end."""
    feed = ScreenFeed()
    with tempfile.NamedTemporaryFile(suffix=".k8st") as file:
        file.write(lzma.decompress((ROOT / f"tests/data/real/{name}.k8st.xz").read_bytes()))
        file.flush()
        replayed([file.name], ReplayRequest(is_by_packet=True, numbers_connections=True), feed, StopRequest(0))
    feed.title = f"-r {name}.k8st"
    feed.end()
    return feed


def numbered(count: int, connections: int = 1) -> list[Packet]:
    """Delivered SYNs of a number of connections, in turn. Their client ports are 10000 and the following ones."""
    made = []
    for at in range(count):
        number = at % connections
        ends = Endpoints("10.0.0.1", 10_000 + number, "10.0.0.2", 80)
        made.append(
            replace(
                samples.ping(), identity=at << 8, number=at + 1, connection=number + 1, endpoints=ends, protocol="TCP",
                tcp_flags="SYN", time=samples.EPOCH + at * 1_000_000,
            )
        )  # fmt: skip
    return made


def screen_lines(screen: TraceScreen) -> list[str]:
    """The characters on the screen."""
    return ["".join(segment.text for segment in strip) for strip in screen.screen._compositor.render_strips()]


def shown(screen: TraceScreen) -> str:
    """The characters on the screen, as one text."""
    return "\n".join(screen_lines(screen))


async def until(pilot: Pilot[None], holds: Callable[[], object]) -> None:
    """Waits until a condition holds. Raises TimeoutError."""
    async with asyncio.timeout(WAIT_SECONDS):
        while not holds():
            await pilot.pause(0.02)
    await pilot.pause()


def pilot(feed: ScreenFeed, steps: Steps, size: tuple[int, int] = (80, 24), stop: StopRequest | None = None) -> TraceScreen:
    """Shows the feed on a screen of `size` columns and lines, and calls `steps` when everything was taken from the queue."""
    screen = TraceScreen(feed, stop or StopRequest(0))

    async def run() -> None:
        async with screen.run_test(size=size) as driver:
            await until(driver, lambda: not feed.packets and not feed.findings and not feed.verdicts)
            await steps(driver, screen)

    asyncio.run(run())
    return screen
