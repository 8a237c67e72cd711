# SPDX-License-Identifier: Apache-2.0
"""Events with other addresses in them, for a capture that is redacted while it is written
(tracer/capture/redact/records.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from tracer.capture.format import record_layout
from tracer.events import record
from tracer.events.record import DETAIL_DTYPE, DTYPE, SLOT, DetailKind, Kind

ADDRESSES = tuple(name for name in DTYPE.names or () if DTYPE[name] == np.dtype("V16"))
MAPPED = b"\0" * 10 + b"\xff\xff"
"""What an IPv4 address begins with where it has 16 bytes."""
Other = Callable[[bytes], bytes]
"""The address to write instead of one, both of 16 bytes."""


def redacted(slots: npt.NDArray[np.uint8], other: Other) -> npt.NDArray[np.uint8]:
    """Ring slots with other addresses in them; records of another kind than events and clues are emptied."""
    slots = slots.copy()
    if not len(slots):
        return slots
    lengths = slots[:, :4].view("<u4").ravel().copy()
    whole = lengths & (record.DISCARDED - 1) == DTYPE.itemsize
    kinds = slots[:, 8 + record_layout.place(DTYPE, "kind")]
    known = (lengths == DTYPE.itemsize) | (lengths == SLOT - 8)
    known &= np.isin(kinds, [int(k) for k in Kind if k not in record_layout.OTHERS])
    detail = known & (kinds == int(Kind.EVENT_CLUE))
    for at in np.flatnonzero((lengths != 0) & ~known).tolist():
        _empty(slots, at, DTYPE.itemsize if whole[at] else SLOT - 8)
    starts = np.flatnonzero(known & whole & ~detail)
    for name in ADDRESSES:
        _replace(slots, starts, record_layout.place(DTYPE, name), other)
    for at in np.flatnonzero(detail).tolist():
        _detail(slots[at], other)
    return slots


def _empty(slots: npt.NDArray[np.uint8], at: int, size: int) -> None:
    """A record that nobody reads: of its length, discarded, and without a byte."""
    slots[at : at + (size + 8) // SLOT] = 0
    slots[at, :4] = np.frombuffer(np.uint32(size | record.DISCARDED).tobytes(), np.uint8)


def _replace(slots: npt.NDArray[np.uint8], starts: npt.NDArray[Any], place: int, other: Other) -> None:
    """The address at this place of whole events."""
    rows, column = starts + (place + 8) // SLOT, (place + 8) % SLOT
    there = np.ascontiguousarray(slots[rows, column : column + 16])
    different, which = np.unique(there.view("V16").ravel(), return_inverse=True)
    new = np.array([np.frombuffer(other(bytes(raw)), np.uint8) for raw in different.tolist()], np.uint8)
    if len(starts):
        slots[rows, column : column + 16] = new[which.ravel()]


def _detail(slot: npt.NDArray[np.uint8], other: Other) -> None:
    """A neighbour has its address in it: the first of four words, or all of them."""
    detail = slot[8 : 8 + DETAIL_DTYPE.itemsize]
    if detail[record_layout.place(DETAIL_DTYPE, "what")] != int(DetailKind.DETAIL_NEIGHBOUR):
        return
    place = record_layout.place(DETAIL_DTYPE, "values")
    raw = detail[place : place + 16].tobytes()
    new = other(MAPPED + raw[:4])[12:] + bytes(12) if not any(raw[4:]) else other(raw)
    detail[place : place + 16] = np.frombuffer(new, np.uint8)
