# SPDX-License-Identifier: Apache-2.0
"""Drains the BPF ring buffer in batches, straight from its memory.

Layout (kernel/bpf/ringbuf.c): page 0 of the map is the consumer position, page 1 the producer position, then the data, mapped
twice in a row so that no record wraps. A record is a header (u32 length with bit 31 = still being written and bit 30 =
discarded, u32 page offset) and its data, padded to 8 bytes. All records here fill one or more slots of one size, and begin
every further slot with eight zero bytes (bpf/records/event.h). So what lies between the two positions is an array of slots: one
copy takes it out, the positions move on, and tracer/events/record.py makes events of it.
"""

from __future__ import annotations

import mmap

import numpy as np
import numpy.typing as npt

from tracer.events import cstruct

PAGE = mmap.PAGESIZE
_BUSY = 1 << 31


class RingBuffer:
    """The consumer's end of one ring buffer map.

    fd: of the map. size: bytes of data, a power of two and a multiple of the page size. slot: bytes, a multiple of 8. fill: of
    the map of struct fill (bpf/records/ring.h), where the programs learn what has been taken out; None: nobody asks.
    """

    def __init__(self, fd: int, size: int, slot: int, fill: int | None = None) -> None:
        self._size, self._slot = size, slot
        kind, access = (mmap.MAP_SHARED, fill) if fill is not None else (mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1)
        self._fill_map = mmap.mmap(access, PAGE, kind, mmap.PROT_READ | mmap.PROT_WRITE)
        self._fill = np.frombuffer(self._fill_map, cstruct.dtype("records/ring.h", "fill"), 1)
        self._consumer_map = mmap.mmap(fd, PAGE, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        self._producer_map = mmap.mmap(fd, PAGE + 2 * size, mmap.MAP_SHARED, mmap.PROT_READ, offset=PAGE)
        self._consumer = np.frombuffer(self._consumer_map, np.uint64, 1)
        self._producer = np.frombuffer(self._producer_map, np.uint64, 1)
        self._data = np.frombuffer(self._producer_map, np.uint8, 2 * size, PAGE)
        self._nothing = np.zeros((0, slot), np.uint8)

    def drain(self) -> npt.NDArray[np.uint8]:
        """The slots of all finished records, oldest first, one a row; no rows when there are none.

        Stops before a record that is still being written: it comes with the next call.
        """
        start, end = int(self._consumer[0]), int(self._producer[0])
        if start == end:
            return self._nothing
        at = start & (self._size - 1)
        data = self._data[at : at + end - start]
        # Behind the first busy record, in its further slots, may be anything; before it, only what was written.
        busy = data.view(np.uint32)[:: self._slot // 4] >= _BUSY
        count = int(busy.argmax()) if busy.any() else len(busy)
        taken = data[: count * self._slot].copy()
        self._consumer[0] = start + len(taken)
        self._fill["taken"] += len(taken)
        return taken.reshape(count, self._slot)

    @property
    def waiting(self) -> int:
        """Bytes written and not yet drained."""
        return int(self._producer[0]) - int(self._consumer[0])

    def close(self) -> None:
        """Gives the mappings back; the arrays handed out are copies and stay good."""
        del self._consumer, self._producer, self._data, self._fill
        self._fill_map.close()
        self._consumer_map.close()
        self._producer_map.close()
