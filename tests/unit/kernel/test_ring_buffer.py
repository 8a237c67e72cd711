# SPDX-License-Identifier: Apache-2.0
"""Draining a ring buffer, from a file in memory with the kernel's layout."""

from __future__ import annotations

import mmap
import os
import struct
import tempfile
from collections.abc import Iterator

import numpy as np
import pytest

from tests.support.builders import event
from tracer.events import cstruct, record
from tracer.events.record import DTYPE, Slots
from tracer.kernel.ring_buffer import PAGE, RingBuffer
from tracer.model.detail import Detail
from tracer.util.ring_level import ring_level

SIZE = 2 * PAGE
SLOT = 24
BUSY, DISCARDED = 1 << 31, 1 << 30


class Writer:
    """The kernel's side: positions in the first two pages, then the data, which continue at their beginning."""

    def __init__(self) -> None:
        self.fd = os.memfd_create("ring")
        os.ftruncate(self.fd, 2 * PAGE + SIZE)

    def start(self, position: int) -> None:
        """Sets both positions, as after long use."""
        os.pwrite(self.fd, struct.pack("<Q", position), 0)
        os.pwrite(self.fd, struct.pack("<Q", position), PAGE)

    @property
    def positions(self) -> tuple[int, int]:
        consumer, producer = (struct.unpack("<Q", os.pread(self.fd, 8, at))[0] for at in (0, PAGE))
        return consumer, producer

    def put(self, position: int, data: bytes) -> None:
        for i, byte in enumerate(data):
            os.pwrite(self.fd, bytes([byte]), 2 * PAGE + (position + i) % SIZE)

    def write(self, value: bytes, mark: int = 0) -> int:
        """Writes one record; returns its position."""
        at = self.positions[1]
        self.put(at, struct.pack("<II", len(value) | mark, 3) + value)
        os.pwrite(self.fd, struct.pack("<Q", at + 8 + len(value)), PAGE)
        return at


def short(number: int) -> bytes:
    """A record of one slot."""
    return struct.pack("<QQ", number, ~number & 0xFFFFFFFF)


def whole(number: int) -> bytes:
    """A record of two slots, with the zero bytes between them."""
    return short(number) + bytes(8) + b"\xff" * 16


@pytest.fixture
def writer() -> Iterator[Writer]:
    made = Writer()
    yield made
    os.close(made.fd)


@pytest.fixture
def ring(writer: Writer) -> Iterator[RingBuffer]:
    made = RingBuffer(writer.fd, SIZE, SLOT)
    yield made
    made.close()


def numbers(slots: Slots) -> list[int]:
    """The numbers of the records that begin in these slots, by the kernel's ring headers."""
    found = []
    for row in slots:
        length, _, number, inverse = struct.unpack("<IIQQ", row.tobytes())
        if length:
            assert inverse == ~number & 0xFFFFFFFF
            found.append(number)
    return found


def test_nothing_written(ring: RingBuffer, writer: Writer) -> None:
    assert ring.drain().shape == (0, SLOT)
    assert ring.waiting == 0
    assert writer.positions == (0, 0)


def test_how_full_it_was_is_noted(ring: RingBuffer, writer: Writer) -> None:
    ring.drain()
    assert ring_level.share == 0.0
    for number in range(SIZE // SLOT // 2):
        writer.write(short(number))
    ring.drain()
    assert ring_level.share == pytest.approx(0.5, abs=0.01)
    ring.drain()
    assert ring_level.share == 0.0


def test_the_programs_see_what_was_taken_out(writer: Writer) -> None:
    """struct fill: bytes that the programs have written, bytes that the reader has taken, and what is to be written."""
    fill = cstruct.dtype("records/ring.h", "fill")
    with tempfile.TemporaryFile() as file:
        file.truncate(mmap.PAGESIZE)
        ring = RingBuffer(writer.fd, SIZE, SLOT, file.fileno())
        for n in (1, 2):
            writer.write(whole(n))
            ring.drain()
        ring.set_detail(Detail.FAILURES)
        ring.close()
        (found,) = np.fromfile(file, fill, 1)
    assert (found["written"], found["taken"], found["detail"]) == (0, 2 * 2 * SLOT, Detail.FAILURES)


def test_records_come_once_and_in_order(ring: RingBuffer, writer: Writer) -> None:
    for n in range(1, 6):
        writer.write(whole(n) if n % 2 else short(n))
    assert ring.waiting == (3 * 2 + 2) * SLOT
    assert numbers(ring.drain()) == [1, 2, 3, 4, 5]
    assert writer.positions == (8 * SLOT, 8 * SLOT)
    assert numbers(ring.drain()) == []
    writer.write(short(9))
    assert numbers(ring.drain()) == [9]


def test_a_busy_record_stops_until_it_is_done(ring: RingBuffer, writer: Writer) -> None:
    writer.write(short(1))
    at = writer.write(whole(2), BUSY)
    writer.write(short(3))
    assert numbers(ring.drain()) == [1]
    assert writer.positions[0] == at
    assert numbers(ring.drain()) == []
    writer.put(at, struct.pack("<I", len(whole(2))))
    assert numbers(ring.drain()) == [2, 3]


def test_the_further_slots_of_an_unfinished_record_are_not_read(ring: RingBuffer, writer: Writer) -> None:
    writer.write(whole(1))
    writer.write(short(2) + struct.pack("<II", 16, 3) + short(99), BUSY)
    assert numbers(ring.drain()) == [1]


@pytest.mark.parametrize("start", [SIZE - 24, SIZE - 8, 7 * SIZE - 48, (1 << 40) - 24])
def test_records_across_the_end_of_the_data(start: int, ring: RingBuffer, writer: Writer) -> None:
    writer.start(start)
    for n in range(1, 5):
        writer.write(whole(n))
    assert numbers(ring.drain()) == [1, 2, 3, 4]
    assert writer.positions[0] == start + 8 * SLOT


def test_a_full_ring(ring: RingBuffer, writer: Writer) -> None:
    writer.start(5 * SIZE - 240)
    many = SIZE // SLOT
    for n in range(many):
        writer.write(short(n))
    assert numbers(ring.drain()) == list(range(many))
    assert ring.waiting == 0


def test_batches_are_copies(writer: Writer) -> None:
    ring = RingBuffer(writer.fd, SIZE, SLOT)
    at = writer.write(short(1))
    slots = ring.drain()
    writer.put(at, struct.pack("<II", 16, 0) + short(99))
    ring.close()
    assert numbers(slots) == [1], "neither new records nor closing change a batch"


def test_events_come_as_they_were_written() -> None:
    """Whole and short ones, between discarded ones."""
    writer = Writer()
    ring = RingBuffer(writer.fd, SIZE, record.SLOT)
    table = event("TABLE", time=5, packet=1 << 40, hook="INPUT", table="filter", header=("10.0.0.1", 1, "fd00::2", 65535))
    hook = event("HOOK", time=6, packet=1 << 40, hook="INPUT", flags="SAME HAS_CT")
    drop = event("DROP", time=7, object=0xFFFFFFFF81000000, flags="HAS_CT CLONE")
    writer.write(table.tobytes())
    writer.write(drop.tobytes(), DISCARDED)
    writer.write(hook.tobytes()[: record.SLOT - 8])
    writer.write(hook.tobytes()[: record.SLOT - 8], DISCARDED)
    writer.write(drop.tobytes())
    slots = ring.drain()
    ring.close()
    os.close(writer.fd)
    assert record.count(slots) == 5
    batch = record.unpack(slots)
    assert batch.dtype == DTYPE
    assert batch.tobytes() == np.concatenate([table, hook, drop]).tobytes()
