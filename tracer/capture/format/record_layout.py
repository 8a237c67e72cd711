# SPDX-License-Identifier: Apache-2.0
"""Stores ring slots in a file and reads events from them, also if the file's records have another layout.

A capture describes the fields of its records. If they are those of this program, no conversion is needed. Otherwise each field
is copied by its name, and a field that the file does not have is zero.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tracer.capture.format.codec import MalformedRecord, inflate
from tracer.capture.format.type_checks import fits
from tracer.events import payload, record, table_trace
from tracer.events.cstruct import Dtype
from tracer.events.detail_row import DETAIL_DTYPE, DetailKind
from tracer.events.nft_trace import HIT_DTYPE
from tracer.events.record import EventArray, Kind, Slots

SLOT = record.SLOT
RECORDS: dict[str, Dtype] = {
    "event": record.DTYPE,
    "nft_hit": HIT_DTYPE,
    "steps": table_trace.STEPS,
    "ruleset": table_trace.RULESET,
    "raw": payload.RAW,
}
"""The structures of bpf/ in the ring. The field `kind`, at the same offset in all of them, tells which one begins in a slot."""
OTHER_STRUCTURES = {
    int(Kind.EVENT_NFT_RULE): "nft_hit",
    int(Kind.EVENT_STEPS): "steps",
    int(Kind.EVENT_RULESET): "ruleset",
    int(Kind.EVENT_RAW): "raw",
}
_IS_KNOWN_DETAIL = np.isin(np.arange(256), [int(k) for k in DetailKind])
MAX_BYTES, BASE_BYTES, MAX_RATIO = 48 << 20, 1 << 20, 96
"""Maximum length of the slots of one stored chunk: MAX_BYTES, and BASE_BYTES plus MAX_RATIO times the stored length. One batch
has at most 16 MB, and is added to other batches of 4 MB."""
MAX_RECORD_BYTES = 1 << 14
"""Maximum length of one record, bytes."""


def describe() -> dict[str, Any]:
    """This program's layout, as plain JSON."""
    fields = {name: [[f, *_field(dtype, f)] for f in dtype.names or ()] for name, dtype in RECORDS.items()}
    return {"slot": record.SLOT, "records": fields, "kinds": {k.name: int(k) for k in Kind}}


def _field(dtype: Dtype, name: str) -> tuple[str, int, int]:
    """Type of a field, number of elements (0 = no array), and offset in bytes."""
    base, shape = dtype[name].subdtype or (dtype[name], ())
    return base.str, int(np.prod(shape or (1,))) if shape else 0, field_offset(dtype, name)


def field_offset(dtype: Dtype, name: str) -> int:
    """Offset of a field in its structure, bytes."""
    return int(dtype.fields[name][1]) if dtype.fields else 0


def pack(slots: Slots, level: int = 1) -> bytes:
    """Slots in their stored form: column by column, compressed.

    Neighbouring bytes of a column are similar, so the result is half as long as by rows, and compression takes less time.

    Args:
        slots: (number of slots, slot length), as drained from the ring.
        level: zlib's level; 0 = not compressed.
    """
    return zlib.compress(slots.T.tobytes(), level)


def count(slots: Slots) -> int:
    """Number of records that begin in these slots (in this program's layout), including records that are not packet events."""
    return record.count(slots)


def count_packet_events(slots: Slots) -> int:
    """Number of packet events that begin in these slots (in this program's layout)."""
    kinds = slots[slots[:, :4].any(axis=1), 8 + field_offset(record.DTYPE, "kind")]
    return int((~np.isin(kinds, (int(Kind.EVENT_RULESET), int(Kind.EVENT_RAW)))).sum())


class RecordLayout:
    """Converts the slots of one file to this program's events. Raises MalformedRecord.

    Args:
        description: the result of `describe` when the file was written.

    Attributes:
        unknown: number of events of an unknown kind, which are left out.
    """

    def __init__(self, description: Any) -> None:
        self._is_current, self.unknown = description == describe(), 0
        try:
            self.slot = int(description["slot"])
            self._dtypes = {name: _dtype(fields) for name, fields in description["records"].items()}
            self._kinds = {int(number): name for name, number in description["kinds"].items()}
            sizes = {self._dtypes[name].itemsize for name in ("event", "nft_hit", "steps")}
        except (LookupError, TypeError, ArithmeticError, ValueError, AttributeError) as e:
            raise MalformedRecord(f"the layout of its events cannot be understood ({e})") from e
        missing = {"kind"} - set(self._dtypes["event"].names or ())
        if missing or any(not 0 < dtype.itemsize <= MAX_RECORD_BYTES for dtype in self._dtypes.values()):
            raise MalformedRecord("the layout of its events makes no sense")
        if not 8 < self.slot <= 1 << 12 or len(sizes) != 1 or (sizes.pop() + 8) % self.slot:
            raise MalformedRecord("the layout of its events makes no sense")

    def unpack(self, stored: object, count: int) -> Slots:
        """The slots of a stored chunk, (count, slot length). Raises MalformedRecord."""
        if not isinstance(stored, bytes) or not 0 <= count * self.slot <= min(MAX_BYTES, BASE_BYTES + MAX_RATIO * len(stored)):
            raise MalformedRecord("a batch is of no size that there can be")
        payload = inflate(stored, self.slot * count + 1)
        if len(payload) != self.slot * count:
            raise MalformedRecord("a batch is not as long as it says")
        return np.ascontiguousarray(np.frombuffer(payload, np.uint8).reshape(self.slot, count).T)

    def events(self, slots: Slots) -> EventArray:
        """The events of slots, as `record.unpack` returns them."""
        slots = _without_cut_event(slots, self._dtypes["event"].itemsize)
        if not self._is_current:
            return self._converted(slots)
        return self._known(record.unpack(slots))

    def batches(self, slots: Slots, counts: Sequence[int]) -> list[EventArray]:
        """The events of several batches, decoded at once: many are short.

        Args:
            slots: The slots of all batches, one behind the other.
            counts: Number of slots of each batch.
        """
        ends = np.cumsum(counts, dtype=np.intp)
        if not len(slots):
            return [record.NOTHING] * len(counts)
        lengths = slots[:, :4].view("<u4").ravel()
        begun = np.append(0, ((lengths != 0) & (lengths < record.DISCARDED)).cumsum())
        event_bytes = self._dtypes["event"].itemsize
        whole = np.flatnonzero(lengths == event_bytes)
        is_cut = whole + (event_bytes + 8) // self.slot > ends[np.searchsorted(ends, whole, "right")]
        before, found = self.unknown, record.NOTHING if is_cut.any() else self.events(slots)
        if len(found) == begun[-1]:
            return np.split(found, begun[ends[:-1]])
        # An event is cut off or left out: so each batch is decoded alone.
        self.unknown = before
        return [self.events(each) for each in np.split(slots, ends[:-1])]

    def _known(self, found: EventArray) -> EventArray:
        """The events of kinds that this program knows; decision details have a kind of their own."""
        known = record.of_kinds(found, *Kind)
        details = np.flatnonzero(record.of_kinds(found, Kind.EVENT_CLUE))
        if len(details):
            octets = found.view(np.uint8).reshape(len(found), found.itemsize)
            known[details] = _IS_KNOWN_DETAIL[octets[details, field_offset(DETAIL_DTYPE, "what")]]
        self.unknown += int((~known).sum())
        return found if known.all() else record.chosen(found, known)

    def _converted(self, slots: Slots) -> EventArray:
        theirs = _unpacked(slots, self._dtypes["event"], self.slot)
        out = np.zeros(len(theirs), record.DTYPE)
        ours = {k.name: int(k) for k in Kind}
        for number in np.unique(theirs["kind"]):
            name = self._kinds.get(int(number), "")
            if name not in ours:
                continue  # a kind that this program does not have
            rows = theirs["kind"] == number
            which = OTHER_STRUCTURES.get(ours[name], "event")
            old = _reinterpret(theirs[rows], self._dtypes[which])
            new = np.zeros(len(old), RECORDS[which])
            for field in set(new.dtype.names or ()) & set(old.dtype.names or ()):
                if new.dtype[field].shape == old.dtype[field].shape:
                    new[field] = old[field]
            new["kind"] = ours[name]
            out[rows] = _padded(new)
        return self._known(out[out["kind"] > 0])


def _dtype(fields: Any) -> Dtype:
    if not fits(fields, list[tuple[str, str, int, int]], is_json=True):
        raise ValueError("fields of another form")
    shapes = [(base, (count,)) if count else base for _, base, count, _ in fields]
    if any(not 0 <= place < MAX_RECORD_BYTES for _, _, _, place in fields):
        raise ValueError("a field at no place")
    if any(not 0 <= count < 4096 or str(base)[:2] not in ("<u", "|u", "|S", "|V") for _, base, count, _ in fields):
        raise ValueError("a field of no known type")
    names, offsets = [f[0] for f in fields], [f[3] for f in fields]
    return np.dtype({"names": names, "formats": shapes, "offsets": offsets})


def _without_cut_event(slots: Slots, event_bytes: int) -> Slots:
    """Removes a last event with missing slots. It is damage: a ring has only complete events."""
    if not len(slots):
        return slots
    per = (event_bytes + 8) // slots.shape[1]
    lengths = slots[:, :4].view("<u4").ravel()
    starts = np.flatnonzero(lengths == event_bytes)
    cut = starts[starts + per > len(slots)]
    return slots[: cut[0]] if len(cut) else slots


def _unpacked(slots: Slots, dtype: Dtype, slot: int) -> EventArray:
    """`record.unpack` for another layout."""
    lengths = slots[:, :4].view("<u4").ravel()
    starts = np.flatnonzero((lengths != 0) & (lengths < 1 << 30))
    out = np.zeros(len(starts), dtype)
    fields = out.view(np.uint8).reshape(len(starts), dtype.itemsize)
    fields[:, : slot - 8] = slots[starts, 8:]
    whole = np.flatnonzero(lengths[starts] == dtype.itemsize)
    for n in range(1, (dtype.itemsize + 8) // slot):
        fields[whole, n * slot - 8 : (n + 1) * slot - 8] = slots[starts[whole] + n]
    return out


def _reinterpret(rows: EventArray, dtype: Dtype) -> EventArray:
    """The same bytes as another structure of equal or smaller length."""
    payload = np.ascontiguousarray(rows).view(np.uint8).reshape(len(rows), rows.dtype.itemsize)
    return np.ascontiguousarray(payload[:, : dtype.itemsize]).view(dtype).ravel()


def _padded(rows: EventArray) -> EventArray:
    payload: npt.NDArray[np.uint8] = np.zeros((len(rows), record.DTYPE.itemsize), np.uint8)
    payload[:, : rows.dtype.itemsize] = rows.view(np.uint8).reshape(len(rows), rows.dtype.itemsize)
    made: EventArray = payload.view(record.DTYPE).ravel()
    return made


def ruleset_slots(slots: Slots) -> Slots:
    """The slots (in this program's layout) with look-ups and replacements of legacy tables."""
    if not len(slots):
        return slots
    at = 8 + field_offset(record.DTYPE, "kind")
    lengths = slots[:, :4].view("<u4").ravel()
    found: Slots = slots[(lengths == record.SLOT - 8) & (slots[:, at] == int(Kind.EVENT_RULESET))]
    return found
