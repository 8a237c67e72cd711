# SPDX-License-Identifier: Apache-2.0
"""Ring slots as a file has them, and events of them, also when this program's records are laid out in another way.

A capture tells the fields of each record it holds. Where they are those of this program, nothing is done; else each field goes
by its name, and one that the file does not have is zero.
"""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import numpy.typing as npt

from tracer.capture.format.codec import MalformedRecord, inflate
from tracer.capture.format.type_checks import fits
from tracer.events import payload, record, table_trace
from tracer.events.record import Kind

SLOT = record.SLOT
RECORDS: dict[str, np.dtype[Any]] = {
    "event": record.DTYPE,
    "nft_hit": record.HIT_DTYPE,
    "steps": table_trace.STEPS,
    "ruleset": table_trace.RULESET,
    "raw": payload.RAW,
}
"""The structures of bpf/ that the ring holds. Which one a slot begins is told by `kind`, at one place in all of them."""
OTHERS = {
    int(Kind.EVENT_NFT_RULE): "nft_hit",
    int(Kind.EVENT_STEPS): "steps",
    int(Kind.EVENT_RULESET): "ruleset",
    int(Kind.EVENT_RAW): "raw",
}
_KNOWN = np.array([int(k) for k in Kind])
MOST_BYTES, ALWAYS, TIMES = 48 << 20, 1 << 20, 96
"""Of the slots of one stored batch: a turn is 16 MB at most, and is put to others of 4 MB. And not more than so many times the
stored length."""
LONGEST = 1 << 14
"""Bytes of one record."""


def describe() -> dict[str, Any]:
    """This program's layout, as plain JSON."""
    fields = {name: [[f, *_field(dtype, f)] for f in dtype.names or ()] for name, dtype in RECORDS.items()}
    return {"slot": record.SLOT, "records": fields, "kinds": {k.name: int(k) for k in Kind}}


def _field(dtype: np.dtype[Any], name: str) -> tuple[str, int, int]:
    """Type, how many, and where."""
    base, shape = dtype[name].subdtype or (dtype[name], ())
    return base.str, int(np.prod(shape or (1,))) if shape else 0, place(dtype, name)


def place(dtype: np.dtype[Any], name: str) -> int:
    """Of a field in its structure, in bytes."""
    return int(dtype.fields[name][1]) if dtype.fields else 0


def pack(slots: npt.NDArray[np.uint8], level: int = 1) -> bytes:
    """Slots as they are stored: by columns, in which neighbours are alike, they become half as long and take less time.

    level: zlib's; 0 stores them as they are.
    """
    return zlib.compress(slots.T.tobytes(), level)


def count(slots: npt.NDArray[np.uint8]) -> int:
    """How many records begin in these slots of this program, those that are no events of a packet included."""
    return record.count(slots)


def of_packets(slots: npt.NDArray[np.uint8]) -> int:
    """How many events of packets begin in these slots of this program."""
    kinds = slots[slots[:, :4].any(axis=1), 8 + place(record.DTYPE, "kind")]
    return int((~np.isin(kinds, (int(Kind.EVENT_RULESET), int(Kind.EVENT_RAW)))).sum())


class RecordLayout:
    """How slots of one file become this program's events. told: what `describe` said when it was written. Raises
    MalformedRecord.

    unknown: events of a kind that there is none of, which are left out.
    """

    def __init__(self, told: Any) -> None:
        self._same, self.unknown = told == describe(), 0
        try:
            self.slot = int(told["slot"])
            self._dtypes = {name: _dtype(fields) for name, fields in told["records"].items()}
            self._kinds = {int(number): name for name, number in told["kinds"].items()}
            sizes = {self._dtypes[name].itemsize for name in ("event", "nft_hit", "steps")}
        except (LookupError, TypeError, ArithmeticError, ValueError, AttributeError) as e:
            raise MalformedRecord(f"the layout of its events cannot be understood ({e})") from e
        missing = {"kind"} - set(self._dtypes["event"].names or ())
        if missing or any(not 0 < dtype.itemsize <= LONGEST for dtype in self._dtypes.values()):
            raise MalformedRecord("the layout of its events makes no sense")
        if not 8 < self.slot <= 1 << 12 or len(sizes) != 1 or (sizes.pop() + 8) % self.slot:
            raise MalformedRecord("the layout of its events makes no sense")

    def unpack(self, stored: object, count: int) -> npt.NDArray[np.uint8]:
        """The slots of a stored batch, one a row. Raises MalformedRecord."""
        if not isinstance(stored, bytes) or not 0 <= count * self.slot <= min(MOST_BYTES, ALWAYS + TIMES * len(stored)):
            raise MalformedRecord("a batch is of no size that there can be")
        payload = inflate(stored, self.slot * count + 1)
        if len(payload) != self.slot * count:
            raise MalformedRecord("a batch is not as long as it says")
        return np.ascontiguousarray(np.frombuffer(payload, np.uint8).reshape(self.slot, count).T)

    def events(self, slots: npt.NDArray[np.uint8]) -> npt.NDArray[Any]:
        """A batch as `record.unpack` makes it."""
        slots = _sound(slots, self._dtypes["event"].itemsize)
        if not self._same:
            return self._converted(slots)
        found = record.unpack(slots)
        known = np.isin(found["kind"], _KNOWN)
        self.unknown += int((~known).sum())
        return found if known.all() else found[known]

    def _converted(self, slots: npt.NDArray[np.uint8]) -> npt.NDArray[Any]:
        theirs = _unpacked(slots, self._dtypes["event"], self.slot)
        out = np.zeros(len(theirs), record.DTYPE)
        ours = {k.name: int(k) for k in Kind}
        for number in np.unique(theirs["kind"]):
            name = self._kinds.get(int(number), "")
            if name not in ours:
                continue  # A kind that this program does not know is not one of its events.
            rows = theirs["kind"] == number
            which = OTHERS.get(ours[name], "event")
            old = _as(theirs[rows], self._dtypes[which])
            new = np.zeros(len(old), RECORDS[which])
            for field in set(new.dtype.names or ()) & set(old.dtype.names or ()):
                if new.dtype[field].shape == old.dtype[field].shape:
                    new[field] = old[field]
            new["kind"] = ours[name]
            out[rows] = _padded(new)
        return out[out["kind"] > 0]


def _dtype(fields: Any) -> np.dtype[Any]:
    if not fits(fields, list[tuple[str, str, int, int]], listed=True):
        raise ValueError("fields of another form")
    shapes = [(base, (count,)) if count else base for _, base, count, _ in fields]
    if any(not 0 <= place < LONGEST for _, _, _, place in fields):
        raise ValueError("a field at no place")
    if any(not 0 <= count < 4096 or str(base)[:2] not in ("<u", "|u", "|S", "|V") for _, base, count, _ in fields):
        raise ValueError("a field of no known type")
    names, offsets = [f[0] for f in fields], [f[3] for f in fields]
    return np.dtype({"names": names, "formats": shapes, "offsets": offsets})


def _sound(slots: npt.NDArray[np.uint8], whole: int) -> npt.NDArray[np.uint8]:
    """Without a last event of which slots are missing: damage, for rings have none."""
    if not len(slots):
        return slots
    per = (whole + 8) // slots.shape[1]
    lengths = slots[:, :4].view("<u4").ravel()
    starts = np.flatnonzero(lengths == whole)
    cut = starts[starts + per > len(slots)]
    return slots[: cut[0]] if len(cut) else slots


def _unpacked(slots: npt.NDArray[np.uint8], dtype: np.dtype[Any], slot: int) -> npt.NDArray[Any]:
    """As record.unpack, for another layout."""
    lengths = slots[:, :4].view("<u4").ravel()
    starts = np.flatnonzero((lengths != 0) & (lengths < 1 << 30))
    out = np.zeros(len(starts), dtype)
    fields = out.view(np.uint8).reshape(len(starts), dtype.itemsize)
    fields[:, : slot - 8] = slots[starts, 8:]
    whole = np.flatnonzero(lengths[starts] == dtype.itemsize)
    for n in range(1, (dtype.itemsize + 8) // slot):
        fields[whole, n * slot - 8 : (n + 1) * slot - 8] = slots[starts[whole] + n]
    return out


def _as(rows: npt.NDArray[Any], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """The same bytes as another structure, which may be shorter."""
    payload = np.ascontiguousarray(rows).view(np.uint8).reshape(len(rows), rows.dtype.itemsize)
    return np.ascontiguousarray(payload[:, : dtype.itemsize]).view(dtype).ravel()


def _padded(rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
    payload: npt.NDArray[np.uint8] = np.zeros((len(rows), record.DTYPE.itemsize), np.uint8)
    payload[:, : rows.dtype.itemsize] = rows.view(np.uint8).reshape(len(rows), rows.dtype.itemsize)
    made: npt.NDArray[Any] = payload.view(record.DTYPE).ravel()
    return made


def rulesets(slots: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Of slots of this program, those that tell of look-ups and replacements of legacy tables."""
    if not len(slots):
        return slots
    at = 8 + place(record.DTYPE, "kind")
    lengths = slots[:, :4].view("<u4").ravel()
    found: npt.NDArray[np.uint8] = slots[(lengths == record.SLOT - 8) & (slots[:, at] == int(Kind.EVENT_RULESET))]
    return found
