# SPDX-License-Identifier: Apache-2.0
"""The forms of times, on packets as blocks and as lines."""

from __future__ import annotations

import io
import re
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.support import sample_packets as samples
from tests.unit.analysis.top.test_interval import verdict
from tracer import render
from tracer.model.time_form import TimeForm
from tracer.render._clock import Clock

AT = 1_795_530_130_294_118_500
"""2026-11-24 13:55:30 UTC, ns since the epoch."""


@pytest.fixture(autouse=True)
def _in_nepal(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "<+0545>-5:45")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("form", "shown"),
    [
        (TimeForm.LOCAL, "20:07:10.294"),
        (TimeForm.UTC, "14:22:10.294Z"),
        (TimeForm.ISO, "2026-11-24T20:07:10.294+05:45"),
        (TimeForm.EPOCH, "1795530130.294118"),
    ],
)
def test_a_point_in_time(form: TimeForm, shown: str) -> None:
    assert Clock(form).stamp(AT) == Clock(form).point(AT) == shown


def test_a_zone_west_of_utc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "<-0330>3:30")
    time.tzset()
    assert Clock(TimeForm.ISO).point(1_000_000_007) == "1969-12-31T20:30:01.000-03:30"


def test_the_difference_to_the_packet_before() -> None:
    clock = Clock(TimeForm.DELTA)
    assert [clock.stamp(AT + ns) for ns in (0, 43_118_000, 43_118_000, 42_000_000, 3_642_000_000)] == [
        "+0.000000 s", "+0.043118 s", "+0.000000 s", "-0.001118 s", "+3.600000 s",
    ]  # fmt: skip
    assert clock.point(AT) == "" and Clock(TimeForm.NONE).stamp(AT) == Clock(TimeForm.NONE).point(AT) == ""


def shown(form: str, times: TimeForm) -> str:
    """A packet, one on the same path 2 ms later, one that continues it, and the cause of a SYN."""
    output = render.find(form)(out := io.StringIO(), io.StringIO(), times=times)
    output.packet(packet := replace(samples.node_port_reply(), time=AT))
    output.packet(replace(packet, time=AT + 2_000_000, identity=2))
    output.packet(replace(packet, time=AT + 4_000_000, identity=3, continues=AT))
    output.syn(verdict(replace(samples.node_port(), time=AT), "no answer", good=False))
    return out.getvalue()


@pytest.mark.parametrize("form", ["text", "oneline"])
@pytest.mark.parametrize("times", list(TimeForm))
def test_each_form_shows_each_time_in_its_form(form: str, times: TimeForm) -> None:
    text = shown(form, times)
    is_local = times is TimeForm.LOCAL
    assert ("20:07:10.294" in text) is (is_local or times is TimeForm.ISO)
    assert len(re.findall(r"^\+0\.00[02]000 s  ", text, re.M)) == 3 * (times is TimeForm.DELTA)
    if times in (TimeForm.DELTA, TimeForm.NONE):
        assert "continues an earlier packet" in text and not re.search(r"\bof  |\bat  |20:07|14:22", text)
    else:
        assert f"continues the packet of {Clock(times).point(AT)}" in text
        assert re.search(rf"SYN .*of {re.escape(Clock(times).point(AT))}  ", text)


def test_a_line_keeps_its_fields_without_times() -> None:
    lines = shown("oneline", TimeForm.NONE).splitlines()
    assert all(line.startswith("-  ") for line in lines) and {len(line.split("  ")) for line in lines[:3]} == {8}


def test_machine_formats_do_not_change() -> None:
    assert len({shown("json", times) for times in TimeForm}) == 1
