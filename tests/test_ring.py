"""Draining a ring buffer, from a file in memory that is laid out as the kernel's."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.builders import event
from tracer.kernel.ring import PAGE, Ring
from tracer.record import DTYPE

SIZE = 2 * PAGE
SMALL = np.dtype([("number", "<u4"), ("twice", "<u4"), ("odd", "u1", (4,))])
"""12 bytes, so that the padding to 8 shows."""
BUSY, DISCARDED = 1 << 31, 1 << 30


class Writer:
    """The kernel's end: positions in the first two pages, then the data, which the kernel maps twice in a row.

    A file cannot be mapped twice in a row by one call, so each byte is written to both places.
    """

    def __init__(self, record: np.dtype[Any]) -> None:
        self.record, self.stride = record, (record.itemsize + 8 + 7) & ~7
        self.fd = os.memfd_create("ring")
        os.ftruncate(self.fd, 2 * PAGE + 2 * SIZE)

    def start(self, position: int) -> None:
        """Both positions, as after long use."""
        os.pwrite(self.fd, struct.pack("<Q", position), 0)
        os.pwrite(self.fd, struct.pack("<Q", position), PAGE)

    @property
    def positions(self) -> tuple[int, int]:
        consumer, producer = (struct.unpack("<Q", os.pread(self.fd, 8, at))[0] for at in (0, PAGE))
        return consumer, producer

    def put(self, position: int, data: bytes) -> None:
        for i, byte in enumerate(data):
            for copy in (0, SIZE):
                os.pwrite(self.fd, bytes([byte]), 2 * PAGE + (position + i) % SIZE + copy)

    def write(self, value: bytes, mark: int = 0) -> int:
        """One record; returns where."""
        at = self.positions[1]
        self.put(at, struct.pack("<II", len(value) | mark, 3) + value)
        os.pwrite(self.fd, struct.pack("<Q", at + self.stride), PAGE)
        return at


def small(number: int) -> bytes:
    return struct.pack("<IIBBBB", number, 2 * number, 1, 2, 3, 4)


@pytest.fixture
def writer() -> Iterator[Writer]:
    made = Writer(SMALL)
    yield made
    os.close(made.fd)


@pytest.fixture
def ring(writer: Writer) -> Iterator[Ring]:
    made = Ring(writer.fd, SIZE, SMALL)
    yield made
    made.close()


def numbers(batch: npt.NDArray[Any]) -> list[int]:
    assert batch.dtype == SMALL
    assert list(batch["twice"]) == [2 * n for n in batch["number"]]
    return [int(n) for n in batch["number"]]


def test_nothing_written(ring: Ring, writer: Writer) -> None:
    assert numbers(ring.drain()) == []
    assert ring.waiting == 0
    assert writer.positions == (0, 0)


def test_records_come_once_and_in_order(ring: Ring, writer: Writer) -> None:
    for n in range(5):
        writer.write(small(n))
    assert ring.waiting == 5 * writer.stride
    assert numbers(ring.drain()) == [0, 1, 2, 3, 4]
    assert writer.positions == (5 * writer.stride, 5 * writer.stride)
    assert numbers(ring.drain()) == []
    writer.write(small(9))
    assert numbers(ring.drain()) == [9]


def test_a_busy_record_stops_until_it_is_done(ring: Ring, writer: Writer) -> None:
    writer.write(small(1))
    at = writer.write(small(2), BUSY)
    writer.write(small(3))
    assert numbers(ring.drain()) == [1]
    assert writer.positions[0] == at
    assert numbers(ring.drain()) == []
    writer.put(at, struct.pack("<I", SMALL.itemsize))
    assert numbers(ring.drain()) == [2, 3]


def test_discarded_records_are_passed_over(ring: Ring, writer: Writer) -> None:
    for n, mark in ((1, 0), (2, DISCARDED), (3, 0), (4, DISCARDED)):
        writer.write(small(n), mark)
    assert numbers(ring.drain()) == [1, 3]
    assert ring.waiting == 0


@pytest.mark.parametrize("start", [SIZE - 24, SIZE - 8, 7 * SIZE - 48, (1 << 40) - 24])
def test_over_the_end_of_the_data(start: int, ring: Ring, writer: Writer) -> None:
    writer.start(start)
    for n in range(4):
        writer.write(small(n))
    assert numbers(ring.drain()) == [0, 1, 2, 3]
    assert writer.positions[0] == start + 4 * writer.stride


def test_a_full_ring(ring: Ring, writer: Writer) -> None:
    writer.start(5 * SIZE - 240)
    many = SIZE // writer.stride
    for n in range(many):
        writer.write(small(n))
    assert numbers(ring.drain()) == list(range(many))
    assert ring.waiting == 0


def test_batches_are_copies(writer: Writer) -> None:
    ring = Ring(writer.fd, SIZE, SMALL)
    at = writer.write(small(1))
    batch = ring.drain()
    writer.put(at, struct.pack("<I", SMALL.itemsize) + b"\0" * 4 + small(99))
    ring.close()
    assert numbers(batch) == [1], "neither new records nor closing change what was handed out"


def test_events_come_as_they_were_written() -> None:
    writer = Writer(DTYPE)
    ring = Ring(writer.fd, SIZE, DTYPE)
    rows = [
        event("TABLE", time=5, packet=1 << 40, hook="INPUT", table="filter", header=("10.0.0.1", 1, "fd00::2", 65535)),
        event("DROP", time=6, object=0xFFFFFFFF81000000, flags="HAS_CT CLONE"),
    ]
    for row in rows:
        writer.write(row.tobytes())
    batch = ring.drain()
    ring.close()
    os.close(writer.fd)
    assert batch.dtype == DTYPE
    assert batch.tobytes() == np.concatenate(rows).tobytes()
