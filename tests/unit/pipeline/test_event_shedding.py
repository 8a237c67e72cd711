# SPDX-License-Identifier: Apache-2.0
"""Packets that are left out of a reading: whole, also their later events, and counted."""

from __future__ import annotations

import numpy as np

from tests.support import captures
from tests.support.builders import Trail
from tracer.events import record
from tracer.events.record import EventArray
from tracer.model.loss import FAILURES_LEFT_OUT, LEFT_OUT, OPENINGS_LEFT_OUT, Loss
from tracer.pipeline.event_shedding import MOST_PERIODS, EventShedder

ENDS = ("192.168.56.1", 40812, "192.168.56.10", 30285)


def packet(began: int, drops: bool = False) -> EventArray:
    """A packet of three events, 1 µs apart. began: time when it was first seen, ns."""
    trail = Trail(ENDS, began << 8 | 1, began).hook("PREROUTING").hook("INPUT")
    return (trail.add("DROP", object=0x10) if drops else trail.add("SOCKET", object=7)).batch


def kept(shedder: EventShedder, now: int, most: int | None, *batches: EventArray) -> list[tuple[int, int]]:
    """(time of the packet's begin, number of the event) of the events that are kept."""
    slots = captures.slots(np.concatenate(batches)) if batches else np.zeros((0, record.SLOT), np.uint8)
    events = record.unpack(shedder.limited(slots, now, most))
    return [(int(each["packet"]) >> 8, int(each["hop"])) for each in events]


def whole(*began: int) -> list[tuple[int, int]]:
    return [(each, hop) for each in began for hop in range(3)]


def test_all_is_kept_below_the_limit() -> None:
    shedder = EventShedder(0)
    assert kept(shedder, 100_000, 9, *map(packet, (10_000, 20_000, 30_000))) == whole(10_000, 20_000, 30_000)
    assert kept(shedder, 200_000, None, *map(packet, (110_000, 120_000))) == whole(110_000, 120_000)
    assert kept(shedder, 300_000, 5) == [] and shedder.losses() == []


def test_packets_are_left_out_whole_and_counted_by_kind() -> None:
    shedder = EventShedder(0)
    found = kept(
        shedder, 100_000, 4, packet(10_000), packet(20_000), packet(30_000), packet(40_000, drops=True), packet(50_000)
    )
    assert found == whole(10_000, 20_000), "a packet that has begun is kept to its end"
    assert shedder.losses() == [Loss(LEFT_OUT, -1, 2, OPENINGS_LEFT_OUT), Loss(LEFT_OUT, -1, 1, FAILURES_LEFT_OUT)]
    assert shedder.losses() == []


def test_later_events_of_a_packet_that_was_left_out_are_left_out() -> None:
    shedder = EventShedder(0)
    first, second = packet(10_000), packet(20_000)
    assert kept(shedder, 21_500, 3, first, second[:2]) == whole(10_000)
    assert kept(shedder, 100_000, 9, second[2:], packet(30_000)) == whole(30_000)
    assert kept(shedder, 200_000, None, packet(110_000)) == whole(110_000)


def test_a_packet_that_was_kept_in_part_is_kept_to_its_end() -> None:
    shedder = EventShedder(0)
    first, second = packet(10_000), packet(20_000)
    assert kept(shedder, 21_500, None, first, second[:2]) == whole(10_000, 20_000)[:5]
    assert kept(shedder, 100_000, 0, second[2:], packet(30_000)) == [(20_000, 2)]


def test_rules_that_are_looked_up_are_kept() -> None:
    shedder = EventShedder(0)
    found = kept(shedder, 100_000, 3, packet(10_000), captures.table_lookup(15_000), packet(20_000))
    assert found == [*whole(10_000), (0, 0)]


def test_the_periods_are_bounded() -> None:
    shedder = EventShedder(0)
    for number in range(1, 4 * MOST_PERIODS):
        assert kept(shedder, number * 100_000, 0, packet(number * 100_000 - 50_000)) == []
    assert len(shedder._periods) == MOST_PERIODS
    # A late event of a packet that was forgotten is kept: its number shows that earlier ones are missing.
    late = packet(50_000)[2:]
    assert kept(shedder, number * 100_000, None, late) == [(50_000, 2)]
    kept(shedder, 10**12, None)
    assert not shedder._periods
