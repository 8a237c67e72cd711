# SPDX-License-Identifier: Apache-2.0
"""Reads one hostile capture in this process, as one of the commands does, and returns how the reading ended."""

from __future__ import annotations

import io
import random
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from tracer.analysis import diff, stats
from tracer.analysis.collector import PacketCollector
from tracer.analysis.result_table import show
from tracer.capture.replay import runner
from tracer.capture.replay.capture_reader import CaptureReader
from tracer.capture.replay.runner import ReplayRequest
from tracer.commands.analyze import capture_info
from tracer.errors import CaptureUnreadable, DamagedCapture, NewerCapture, TraceError
from tracer.export.html import Html
from tracer.model.filter import parse_host
from tracer.model.packet import Packet
from tracer.pipeline.shutdown import StopRequest
from tracer.render.base import Output
from tracer.render.json import JsonOutput
from tracer.render.text import TextOutput
from tracer.selection.display_filter import DisplayFilter

REQUESTS = (
    ReplayRequest(), ReplayRequest(), ReplayRequest(follow=True), ReplayRequest(no_rules=True),
    ReplayRequest(DisplayFilter(ports=(8080,)), drops_only=True),
    ReplayRequest(DisplayFilter(hosts=(parse_host("10.244.0.0/16"),), iface="eth0"), follow=True), ReplayRequest(count=2),
)  # fmt: skip


def read(path: Path, dice: random.Random) -> str:
    """ "whole", "in-part" or "not-at-all". An exception that the command does not handle is a crash."""
    how = dice.choices((_printed, _counted, _compared, _reported), (12, 2, 1, 1))[0]
    try:
        with CaptureReader(str(path)) as capture:
            how(capture, dice.choice(REQUESTS), dice)
            runner.check_complete(capture)
            return "whole" if capture.ended() is not None else "in-part"
    except (CaptureUnreadable, NewerCapture) as e:
        one_sentence(e)
        return "not-at-all"
    except DamagedCapture as e:
        one_sentence(e)
        return "in-part"


def one_sentence(e: TraceError) -> None:
    text = str(e)
    assert text.endswith(".") and "\n" not in text and "Traceback" not in text and len(text) < 2000, text


def _printed(capture: CaptureReader, request: ReplayRequest, dice: random.Random) -> None:
    made: Callable[..., Output] = dice.choice((JsonOutput, TextOutput))
    out = made(io.StringIO(), io.StringIO(), verbose=dice.random() < 0.5)
    full = runner.facts(capture, dice.random() < 0.5)
    out.begin(full, str(runner.options(capture).get("said", "")), runner.release(capture))
    out.summary(runner.replay(capture, out, request, StopRequest()))


def _counted(capture: CaptureReader, request: ReplayRequest, dice: random.Random) -> None:
    made = [stats.make(name) for name in stats.names()]

    def take(packet: Packet) -> None:
        for one in made:
            one.feed(packet)

    runner.replay(capture, PacketCollector(take), request, StopRequest())
    show([table for one in made for table in one.tables()], io.StringIO(), dice.choice(("json", "text")))


def _compared(capture: CaptureReader, request: ReplayRequest, dice: random.Random) -> None:
    side = diff.CaptureProfile(diff.rules_of(capture))
    runner.replay(capture, PacketCollector(side.feed), request, StopRequest())
    show(diff.tables(side, diff.CaptureProfile(), ("A", "B")), io.StringIO(), "json")


def _reported(capture: CaptureReader, request: ReplayRequest, dice: random.Random) -> None:
    with TemporaryDirectory() as name:
        made = Html(Path(name) / "report.html", capture_info(capture, None))
        totals = runner.replay(capture, PacketCollector(made.packet), request, StopRequest())
        for finding in totals.findings:
            made.finding(finding)
        made.close(totals)
