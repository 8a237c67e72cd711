# SPDX-License-Identifier: Apache-2.0
"""Drains the BPF ring buffer in batches, directly from its memory.

Layout (kernel/bpf/ringbuf.c): page 0 of the map is the consumer position, page 1 the producer position, then the data. The
kernel offers the data twice in a row, so that no record wraps; only the first of them is mapped here, because every page of
both would count as this process's memory. A record is a header (u32 length with bit 31 = still being written and bit 30 =
discarded, u32 page offset) and its data, padded to 8 bytes. All records here fill one or more slots of one size, and begin
every further slot with eight zero bytes (bpf/records/event.h). So the data between the two positions is an array of slots: it
is copied at once, or written to a file without a copy, the position advances, and tracer/events/record.py decodes the events.
"""

from __future__ import annotations

import mmap
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from tracer.events import cstruct
from tracer.events.record import Slots
from tracer.model.detail import Detail
from tracer.util.ring_level import ring_level

PAGE = mmap.PAGESIZE
_BUSY = 1 << 31
WRITTEN_BYTES = 1 << 16
"""Most bytes that are written to a file at a time: before each page the kernel touches all further pages of the same write."""


def _complete(lengths: npt.NDArray[np.uint32]) -> int:
    """Number of slots before the first record that is still being written; its own further slots may hold any data."""
    if not len(lengths) or lengths.max() < _BUSY:
        return len(lengths)
    return int((lengths >= _BUSY).argmax())


class RingBuffer:
    """The consumer of one ring buffer map.

    Args:
        fd: Descriptor of the map.
        size: Size of the data, bytes; a power of two and a multiple of the page size.
        slot: Size of a slot, bytes; a multiple of 8.
        fill: Descriptor of the map of struct fill (bpf/records/ring.h), which reports the drained bytes to the programs;
            None = not reported.
    """

    def __init__(self, fd: int, size: int, slot: int, fill: int | None = None) -> None:
        self._size, self._slot = size, slot
        kind, access = (mmap.MAP_SHARED, fill) if fill is not None else (mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1)
        self._fill_map = mmap.mmap(access, PAGE, kind, mmap.PROT_READ | mmap.PROT_WRITE)
        self._fill = np.frombuffer(self._fill_map, cstruct.dtype("records/ring.h", "fill"), 1)
        self._consumer_map = mmap.mmap(fd, PAGE, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        self._producer_map = mmap.mmap(fd, PAGE + size, mmap.MAP_SHARED, mmap.PROT_READ, offset=PAGE)
        self._consumer = np.frombuffer(self._consumer_map, np.uint64, 1)
        self._producer = np.frombuffer(self._producer_map, np.uint64, 1)
        self._data = np.frombuffer(self._producer_map, np.uint8, size, PAGE)
        self._words = self._data.view(np.uint32)
        self._nothing = np.zeros((0, slot), np.uint8)

    def drain(self) -> Slots:
        """Takes all complete records out of the ring.

        Stops before a record that is still being written; the next call returns it.

        Returns:
            The slots, oldest first, as an array of shape (n, slot); n = 0 if there are none.
        """
        length = self._complete_bytes()
        if not length:
            return self._nothing
        parts = self._parts(length)
        taken = parts[0].copy() if len(parts) == 1 else np.concatenate(parts)
        self._advance(length)
        return taken.reshape(-1, self._slot)

    def drain_to(self, file: BinaryIO) -> int:
        """Writes all complete records to a file, out of the ring's memory, and takes them out of the ring. They are as drain()
        returns them.

        Args:
            file: A file whose write() takes all bytes; without a buffer there is no further copy.

        Returns:
            Number of bytes written.
        """
        length = self._complete_bytes()
        for part in self._parts(length):
            for at in range(0, len(part), WRITTEN_BYTES):
                file.write(part[at : at + WRITTEN_BYTES].data)
        self._advance(length)
        return length

    def _complete_bytes(self) -> int:
        """Length of the complete records from the consumer's position on, bytes."""
        start, end = int(self._consumer[0]), int(self._producer[0])
        ring_level.share = (end - start) / self._size
        if start == end:
            return 0
        at, length = start & (self._size - 1), end - start
        # The lengths of records are read before their data, because others become complete meanwhile. Lengths do not wrap:
        # the size and the slot are multiples of 8.
        step, end_of_lengths = self._slot // 4, (at + length) // 4
        before = self._words[at // 4 : end_of_lengths : step]
        count = _complete(before)
        if count == len(before) < length // self._slot:
            first = at // 4 + count * step - self._size // 4
            count += _complete(self._words[first : end_of_lengths - self._size // 4 : step])
        return count * self._slot

    def _parts(self, length: int) -> list[npt.NDArray[np.uint8]]:
        """The next bytes of the ring, as views of its memory: two where they continue at its beginning, none of length 0."""
        at = int(self._consumer[0]) & (self._size - 1)
        here = min(length, self._size - at)
        return [part for part in (self._data[at : at + here], self._data[: length - here]) if len(part)]

    def _advance(self, length: int) -> None:
        """Gives the memory of the next bytes back to the programs."""
        self._consumer[0] += np.uint64(length)
        self._fill["taken"] += length

    def set_detail(self, detail: Detail) -> None:
        """Tells the programs how much to write about packets that begin from now on."""
        self._fill["detail"] = detail

    @property
    def waiting(self) -> int:
        """Number of bytes written and not yet drained."""
        return int(self._producer[0]) - int(self._consumer[0])

    def close(self) -> None:
        """Unmaps the memory; the arrays returned before are copies and stay valid."""
        del self._consumer, self._producer, self._data, self._words, self._fill
        self._fill_map.close()
        self._consumer_map.close()
        self._producer_map.close()
