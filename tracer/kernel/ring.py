"""Drains the BPF ring buffer in batches, straight from its memory.

Layout (kernel/bpf/ringbuf.c): page 0 of the map is the consumer position, page 1 the producer position, then the data, mapped
twice in a row so that no record wraps. A record is a header (u32 length with bit 31 = still being written and bit 30 =
discarded, u32 page offset) and its data, padded to 8 bytes. All records here have one size, so what lies between the two
positions is an array with a stride; one copy takes it out, and the positions move on.
"""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np
import numpy.typing as npt

PAGE = mmap.PAGESIZE
_HEADER = 8
_BUSY = 1 << 31


class Ring:
    """The consumer's end of one ring buffer map.

    fd: of the map. size: bytes of data, a power of two and a multiple of the page size. record: its one record type.
    """

    def __init__(self, fd: int, size: int, record: np.dtype[Any]) -> None:
        self._size, self._record = size, record
        self._stride = (record.itemsize + _HEADER + 7) & ~7
        self._consumer_map = mmap.mmap(fd, PAGE, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        self._producer_map = mmap.mmap(fd, PAGE + 2 * size, mmap.MAP_SHARED, mmap.PROT_READ, offset=PAGE)
        self._consumer = np.frombuffer(self._consumer_map, np.uint64, 1)
        self._producer = np.frombuffer(self._producer_map, np.uint64, 1)
        self._data = np.frombuffer(self._producer_map, np.uint8, 2 * size, PAGE)

    def drain(self) -> npt.NDArray[Any]:
        """All finished records, oldest first, as one array of the record type; empty when there are none.

        Stops before a record that is still being written: it comes with the next call.
        """
        start, end = int(self._consumer[0]), int(self._producer[0])
        count = (end - start) // self._stride
        at = start & (self._size - 1)
        rows = self._data[at : at + count * self._stride].reshape(count, self._stride)
        heads = rows[:, :4].copy().view(np.uint32).ravel()
        busy = np.flatnonzero(heads & _BUSY)
        if busy.size:
            count = int(busy[0])
        taken = rows[:count, _HEADER : _HEADER + self._record.itemsize].copy()
        kept = taken[heads[:count] == self._record.itemsize] if (heads[:count] != self._record.itemsize).any() else taken
        self._consumer[0] = start + count * self._stride
        return kept.view(self._record).ravel()

    @property
    def waiting(self) -> int:
        """Bytes written and not yet drained."""
        return int(self._producer[0]) - int(self._consumer[0])

    def close(self) -> None:
        """Gives the mappings back; the arrays handed out are copies and stay good."""
        del self._consumer, self._producer, self._data
        self._consumer_map.close()
        self._producer_map.close()
