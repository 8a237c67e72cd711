# SPDX-License-Identifier: Apache-2.0
"""Drains the BPF ring buffer in batches, directly from its memory.

Layout (kernel/bpf/ringbuf.c): page 0 of the map is the consumer position, page 1 the producer position, then the data. The
kernel offers the data twice in a row, so that no record wraps; only the first of them is mapped here, because every page of
both would count as this process's memory. A record is a header (u32 length with bit 31 = still being written and bit 30 =
discarded, u32 page offset) and its data, padded to 8 bytes. All records here fill one or more slots of one size, and begin
every further slot with eight zero bytes (bpf/records/event.h). So the data between the two positions is an array of slots: it
is copied at once, the position advances, and tracer/events/record.py decodes the events.
"""

from __future__ import annotations

import mmap

import numpy as np
import numpy.typing as npt

from tracer.events import cstruct
from tracer.events.record import Slots
from tracer.model.detail import Detail
from tracer.util.ring_level import ring_level

PAGE = mmap.PAGESIZE
_BUSY = 1 << 31


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
        start, end = int(self._consumer[0]), int(self._producer[0])
        ring_level.share = (end - start) / self._size
        if start == end:
            return self._nothing
        at, length = start & (self._size - 1), end - start
        # The lengths of records are read before their data, because others become complete meanwhile. Lengths do not wrap:
        # the size and the slot are multiples of 8.
        step, end_of_lengths = self._slot // 4, (at + length) // 4
        before = self._words[at // 4 : end_of_lengths : step]
        count = _complete(before)
        if count == len(before) < length // self._slot:
            first = at // 4 + count * step - self._size // 4
            count += _complete(self._words[first : end_of_lengths - self._size // 4 : step])
        taken = self._copy(at, count * self._slot)
        self._consumer[0] = start + len(taken)
        self._fill["taken"] += len(taken)
        return taken.reshape(count, self._slot)

    def set_detail(self, detail: Detail) -> None:
        """Tells the programs how much to write about packets that begin from now on."""
        self._fill["detail"] = detail

    def _copy(self, at: int, length: int) -> npt.NDArray[np.uint8]:
        """A copy of the data from an offset on; it continues at the beginning of the ring."""
        if at + length <= self._size:
            return self._data[at : at + length].copy()
        return np.concatenate((self._data[at:], self._data[: at + length - self._size]))

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
