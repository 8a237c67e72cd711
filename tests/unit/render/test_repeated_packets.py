# SPDX-License-Identifier: Apache-2.0
"""Each output format writes the same of a packet on a shared path, whether it gets it whole or by its path."""

from __future__ import annotations

import io
from collections.abc import Sequence
from itertools import chain

import pytest

from tests.support.builders import SECOND, Trail, hops
from tests.support.shared_paths import delivered, forwarded, rows_of
from tracer import render
from tracer.model.packet import Packet
from tracer.model.time_form import TimeForm
from tracer.packets.assembler import PacketAssembler
from tracer.packets.shared_packet import AnyPacket, SharedPacket, whole
from tracer.render.base import Output
from tracer.render.text import TextOutput

MANY = 60
"""Of each of the two kinds: more packets within a second than `auto` writes as blocks."""


def packets_of(trails: Sequence[Trail]) -> list[AnyPacket]:
    assembler = PacketAssembler(hops())
    assembler.feed(rows_of(*trails))
    found = list(chain.from_iterable(assembler.chunks()))
    assert len(found) == len(trails) and sum(isinstance(packet, SharedPacket) for packet in found) == len(trails) - 2
    return found


def few_connections() -> list[Trail]:
    """Packets of three connections each, so that text writes most of them in short form."""
    pairs = ((delivered(2 * n, 40000 + n % 3), forwarded(2 * n + 1, 41000 + n % 3, 20000 + n % 3)) for n in range(1, MANY + 1))
    return list(chain.from_iterable(pairs))


def written(form: str, packets: Sequence[AnyPacket], is_repeated: bool, verbose: bool, times: TimeForm) -> tuple[str, str]:
    out, err = io.StringIO(), io.StringIO()
    output = render.find(form)(out, err, verbose, times)
    for packet in packets:
        if isinstance(packet, SharedPacket) and is_repeated:
            output.repeat(packet)
        else:
            output.packet(whole(packet))
    return out.getvalue(), err.getvalue()


@pytest.mark.parametrize("times", [TimeForm.LOCAL, TimeForm.DELTA, TimeForm.NONE], ids=str)
@pytest.mark.parametrize("verbose", [False, True], ids=["", "verbose"])
@pytest.mark.parametrize("form", ["auto", "text", "oneline", "json"])
def test_both_ways_give_the_same_text(form: str, verbose: bool, times: TimeForm) -> None:
    packets = packets_of(few_connections())
    repeated = written(form, packets, True, verbose, times)
    assert repeated == written(form, packets, False, verbose, times) and repeated[0].count("\n") >= len(packets)


def test_a_format_with_its_own_packet_gets_whole_packets() -> None:
    given: list[Packet] = []

    class Kept(TextOutput):
        def packet(self, packet: Packet) -> None:
            given.append(packet)

    class Counted(TextOutput):
        def repeat(self, packet: SharedPacket) -> None:
            given.clear()

    packets = packets_of([delivered(1), delivered(2, 40002), forwarded(3), forwarded(4, 40004)])
    for packet in packets:
        if isinstance(packet, SharedPacket):
            Kept(io.StringIO(), io.StringIO()).repeat(packet)
    assert given == [whole(packet) for packet in packets if isinstance(packet, SharedPacket)]
    assert "repeat" in Kept.__dict__ and Kept.repeat is Output.repeat and Counted.repeat is not Output.repeat
    assert packets[0] is whole(packets[0]) and SECOND
