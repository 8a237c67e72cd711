# SPDX-License-Identifier: Apache-2.0
"""The rows of a packet that may still get more of them."""

from __future__ import annotations

import numpy as np

from tests.support.builders import POD, Trail
from tests.support.shared_paths import delivered, detail
from tests.unit.packets.test_path_templates import chained, with_key
from tracer.events import record
from tracer.events.record import Event
from tracer.packets.open_packet import OpenPacket


def test_rows_of_several_batches() -> None:
    rows = delivered(1).batch
    packet = OpenPacket(rows[:1].tobytes(), True)
    assert (packet.began, packet.last, packet.count) == (rows["time"][0], rows["time"][0], 1)
    assert packet.row(0) == rows[:1].tobytes() and [e.hop for e in packet.events] == [0]
    packet.add(rows[1:].tobytes(), True)
    assert (packet.began, packet.last, packet.count) == (rows["time"][0], rows["time"][2], 3)
    assert np.array_equal(packet.rows, rows) and packet.events == list(record.events(rows))
    assert [packet.row(at) for at in range(3)] == [rows[at : at + 1].tobytes() for at in range(3)]


def test_settled_while_all_rows_are() -> None:
    rows = delivered(1).batch
    packet = OpenPacket(rows[:1].tobytes(), True)
    packet.add(rows[1:2].tobytes(), False)
    packet.add(rows[2:].tobytes(), True)
    assert not packet.is_settled and not OpenPacket(rows.tobytes()).is_settled and OpenPacket(rows.tobytes(), True).is_settled


def test_registers_and_details_of_a_row() -> None:
    packet = OpenPacket(with_key(chained(1, 40001, 101, 102), b"abcdefgh").batch.tobytes())
    assert packet.registers(1) == b"abcdefgh".ljust(64, b"\0") and packet.registers(2) == bytes(64)
    found = OpenPacket(detail(delivered(1), "LISTENER", (1, 128, 2, 256)).batch.tobytes()).detail(3)
    assert found.what == "listener" and found.number("accept_queue") == 1 and found.number("syn_queue") == 2


def test_whether_there_is_an_event() -> None:
    hits = chained(1, 40001, 101, 102).batch
    assert OpenPacket(hits.tobytes()).has_event and not OpenPacket(hits[1:3].tobytes()).has_event
    only = detail(Trail(("10.0.0.1", 1, "10.0.0.2", 2), netns=POD), "LISTENER", (1, 128, 2, 256))
    assert not OpenPacket(only.batch.tobytes()).has_event
    assert all(isinstance(e, Event) for e in OpenPacket(only.batch.tobytes()).events)
