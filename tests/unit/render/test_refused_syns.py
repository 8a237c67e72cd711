# SPDX-License-Identifier: Apache-2.0
"""A SYN that this node refused is shown once: its cause is on its block. No packet has a line in red beside one in green."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from itertools import pairwise

import pytest

from tests.support import sample_packets as samples
from tests.support.terminal import Terminal
from tests.unit.analysis.top.test_interval import verdict
from tracer.model.hop import Drop, HopKind
from tracer.model.packet import Outcome, Packet
from tracer.render.auto import AutoOutput
from tracer.render.oneline import OneLineOutput
from tracer.render.text import TextOutput

RED, GREEN = "\x1b[1;31m", "\x1b[32m"


def output() -> tuple[TextOutput, io.StringIO]:
    out = io.StringIO()
    made = TextOutput(out, io.StringIO())
    made.begin_batch()
    return made, out


def test_the_cause_is_on_the_block() -> None:
    made, out = output()
    made.packet(samples.rejected())
    made.packet(samples.ping())
    assert out.getvalue() == "", "the order of packets is kept"
    made.syn(verdict(samples.rejected(), "no endpoints", good=False))
    refused, ping = out.getvalue().strip().split("\n\n")
    assert refused.splitlines()[-2].startswith("          =>  REJECTED in")
    assert refused.splitlines()[-1] == "       cause  no endpoints"
    assert " SYN fd00" not in out.getvalue() and ping.splitlines()[-1].endswith("delivered to node's kernel")


def test_two_refused_syns_each_get_their_own_cause() -> None:
    made, out = output()
    first, second = samples.rejected(), samples.full_queue()
    made.packet(first)
    made.packet(second)
    made.syn(verdict(second, "accept queue full", good=False))
    made.syn(verdict(first, "no endpoints", good=False))
    blocks = out.getvalue().strip().split("\n\n")
    assert [block.splitlines()[-1].split("  ")[-1] for block in blocks] == ["no endpoints", "accept queue full"]


def test_without_a_cause_the_block_is_written_at_the_end_of_the_batch() -> None:
    made, out = output()
    made.packet(samples.rejected())
    made.end_batch(1)
    assert "REJECTED" in out.getvalue() and "cause" not in out.getvalue()
    made.syn(verdict(samples.rejected(), "no endpoints", good=False))
    assert " SYN [fd00:10:244::17]:51514" in out.getvalue(), "a cause that comes later has its own line"


def test_a_syn_that_got_through_has_a_line_of_its_own() -> None:
    made, out = output()
    made.packet(samples.node_port())
    made.syn(verdict(samples.node_port(), "accepted"))
    assert re.search(
        r"^ +cause  SYN 192\.168\.56\.1:40812 -> 192\.168\.56\.10:30285 of \S+  accepted$", out.getvalue(), re.MULTILINE
    )


def test_a_change_to_lines_loses_no_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tracer.render.auto.WINDOW_PACKETS", 2)
    out = io.StringIO()
    made = AutoOutput(out, io.StringIO())
    made._times = type(made._times)(maxlen=2)
    made.begin_batch()
    for packet in (samples.rejected(), samples.ping(), samples.ping(), samples.ping()):
        made.packet(packet)
    made.syn(verdict(samples.rejected(), "no endpoints", good=False))
    made.end_batch(1)
    text = out.getvalue()
    assert text.count("REJECTED") == 1 and text.count("delivered to node's kernel") == 3 and "no endpoints" in text


def with_copy(packet: Packet) -> Packet:
    """The packet, with a copy that was dropped."""
    drop = samples.hop(200, HopKind.DROP, drop=Drop("QUEUE_PURGE", "skb_queue_purge_reason"), clone=True)
    return samples.with_hops(packet, drop)


@pytest.mark.parametrize("verbose", [False, True])
@pytest.mark.parametrize(
    "packet",
    [
        *samples.every(),
        with_copy(samples.node_port()),
        with_copy(samples.ping()),
        replace(samples.node_port(), outcome=Outcome.DROPPED, verdict="DROPPED behind the listener"),
    ],
)
def test_no_packet_is_red_and_green(packet: Packet, verbose: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    out = Terminal()
    TextOutput(out, Terminal(), verbose).packet(packet)
    assert not (RED in out.getvalue() and GREEN in out.getvalue())


@pytest.mark.parametrize("form", [TextOutput, OneLineOutput])
def test_a_failed_connection_is_no_red_line_beside_a_green_packet(
    form: type[TextOutput], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The SYN left this node, and no answer came: its packet is green, so its cause is a doubt."""
    monkeypatch.setenv("TERM", "xterm")
    for packet, code in ((samples.node_port(), "\x1b[33m"), (samples.rejected(), RED)):
        out = Terminal()
        form(out, Terminal()).syn(verdict(packet, "no answer", good=False))
        assert f"{code}no answer" in " ".join(out.getvalue().split())


def test_causes_come_in_the_order_of_their_packets() -> None:
    made, out = output()
    some = [replace(samples.rejected(), identity=n, number=n, time=samples.EPOCH + n * 1_000_000) for n in range(20)]
    for packet in some:
        made.packet(packet)
    for packet in reversed(some):
        made.syn(verdict(packet, f"cause {packet.number}", good=False))
    found = [int(number) for number in re.findall(r"cause  cause (\d+)", out.getvalue())]
    assert len(found) == 20 and all(one < other for one, other in pairwise(found))
