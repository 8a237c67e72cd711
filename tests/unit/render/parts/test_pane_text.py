# SPDX-License-Identifier: Apache-2.0
"""Text for a part of a screen: the lines of the text format, folded to a width, with nothing of it interpreted."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest

from tests.support import sample_packets as samples
from tests.support.sample_findings import FOUND
from tests.unit.ui.test_kept_connections import verdict
from tracer.model.evidence import Evidence
from tracer.model.handshake import Cause
from tracer.render.parts.pane_text import finding_text, notes_text, packet_text
from tracer.render.text import TextOutput


@pytest.mark.parametrize("is_verbose", [False, True])
def test_a_packet_is_as_in_the_text_format(is_verbose: bool) -> None:
    for packet in samples.every():
        out = io.StringIO()
        TextOutput(out, io.StringIO(), verbose=is_verbose).packet(packet)
        assert packet_text(packet, 1_000, is_verbose).plain == out.getvalue().rstrip("\n")


def test_it_is_folded_to_the_width() -> None:
    for width in (80, 118):
        for packet in samples.every():
            assert max(len(line) for line in packet_text(packet, width).plain.split("\n")) <= width
        assert max(len(line) for line in finding_text(FOUND, width).plain.split("\n")) <= width


def test_colours_are_styles() -> None:
    text = packet_text(samples.rejected(), 80)
    assert "\x1b" not in text.plain and any("color(1)" in str(span.style) for span in text.spans)


def test_the_cause_of_a_syn() -> None:
    found = verdict(samples.rejected(), "no endpoints")
    assert packet_text(samples.rejected(), 200, verdict=found).plain.endswith("cause  no endpoints: so")
    derived = replace(found, cause=Cause("no answer", "no answer", Evidence.DERIVED))
    assert packet_text(samples.rejected(), 200, verdict=derived).plain.endswith("cause  no answer  (derived)")


@pytest.mark.parametrize("name", ["[bold]x[/]", "\x1b[2J", "a\nb", "\u202e"])
def test_nothing_is_interpreted(name: str) -> None:
    packet = replace(samples.node_port(), verdict=name, iface=name)
    for text in (packet_text(packet, 500), finding_text(replace(FOUND, cause=name), 500), notes_text([name], 500)):
        assert "\x1b" not in text.plain and "\u202e" not in text.plain and "a\nb" not in text.plain
        if name.startswith("["):
            assert name in text.plain
