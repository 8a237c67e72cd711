# SPDX-License-Identifier: Apache-2.0
"""Replaces the addresses in events, for a capture that is redacted while it is written (tracer/capture/redact/records.py)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from tracer.capture.format import record_layout
from tracer.events import record
from tracer.events.detail_row import DETAIL_DTYPE, DetailKind
from tracer.events.record import DTYPE, SLOT, Kind, Slots

ADDRESSES = tuple(name for name in DTYPE.names or () if DTYPE[name] == np.dtype("V16"))
MAPPED = b"\0" * 10 + b"\xff\xff"
"""Prefix of an IPv4 address that is stored in 16 bytes."""
_WITH_ADDRESS = (int(DetailKind.DETAIL_NEIGHBOUR), int(DetailKind.DETAIL_CONNECT), int(DetailKind.DETAIL_LOOKUP))
"""Kinds of decision details with an address in their values."""
Other = Callable[[bytes], bytes]
"""Gives the pseudonym of an address; both have 16 bytes."""


def redact_slots(slots: Slots, other: Other) -> Slots:
    """A copy of ring slots with replaced addresses. Records that are neither events nor decision details are emptied.

    Args:
        slots: (number of slots, slot length).
        other: gives the pseudonym of an address.
    """
    slots = slots.copy()
    if not len(slots):
        return slots
    lengths = slots[:, :4].view("<u4").ravel().copy()
    is_whole = lengths & (record.DISCARDED - 1) == DTYPE.itemsize
    kinds = slots[:, 8 + record_layout.field_offset(DTYPE, "kind")]
    is_event = (lengths == DTYPE.itemsize) | (lengths == SLOT - 8)
    is_event &= np.isin(kinds, [int(k) for k in Kind if k not in record_layout.OTHER_STRUCTURES])
    detail = is_event & (kinds == int(Kind.EVENT_CLUE))
    for at in np.flatnonzero((lengths != 0) & ~is_event).tolist():
        _empty(slots, at, DTYPE.itemsize if is_whole[at] else SLOT - 8)
    starts = np.flatnonzero(is_event & is_whole & ~detail)
    for name in ADDRESSES:
        _replace(slots, starts, record_layout.field_offset(DTYPE, name), other)
    for at in np.flatnonzero(detail).tolist():
        _redact_detail(slots[at], other)
    return slots


def _empty(slots: Slots, at: int, size: int) -> None:
    """Overwrites a record with zeros and marks it as discarded. Its length stays."""
    slots[at : at + (size + 8) // SLOT] = 0
    slots[at, :4] = np.frombuffer(np.uint32(size | record.DISCARDED).tobytes(), np.uint8)


def _replace(slots: Slots, starts: npt.NDArray[np.intp], place: int, other: Other) -> None:
    """Replaces the address at the offset `place` of whole events."""
    rows, column = starts + (place + 8) // SLOT, (place + 8) % SLOT
    there = np.ascontiguousarray(slots[rows, column : column + 16])
    different, which = np.unique(there.view("V16").ravel(), return_inverse=True)
    new = np.array([np.frombuffer(other(bytes(raw)), np.uint8) for raw in different.tolist()], np.uint8)
    if len(starts):
        slots[rows, column : column + 16] = new[which.ravel()]


def _redact_detail(slot: npt.NDArray[np.uint8], other: Other) -> None:
    """Replaces the address of a neighbour or of a connect(): the first of four 32-bit values (IPv4), or all four. Removes the
    name of a process."""
    detail = slot[8 : 8 + DETAIL_DTYPE.itemsize]
    what = detail[record_layout.field_offset(DETAIL_DTYPE, "what")]
    if what == int(DetailKind.DETAIL_QUEUE_ANSWER):
        start = record_layout.field_offset(DETAIL_DTYPE, "options")
        detail[start : start + DETAIL_DTYPE["options"].itemsize] = 0
    if what not in _WITH_ADDRESS:
        return
    place = record_layout.field_offset(DETAIL_DTYPE, "values")
    raw = detail[place : place + 16].tobytes()
    new = other(MAPPED + raw[:4])[12:] + bytes(12) if not any(raw[4:]) else other(raw)
    detail[place : place + 16] = np.frombuffer(new, np.uint8)
