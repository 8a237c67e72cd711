# SPDX-License-Identifier: Apache-2.0
"""Captures with correct checksums and wrong contents: taken apart, changed, and put together again."""

from __future__ import annotations

import base64
import os
import random
import sqlite3
import struct
import zlib
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from tests.fuzz import values
from tracer.capture.format.codec import unpack
from tracer.capture.format.record_layout import RecordLayout, field_offset
from tracer.capture.format.schema import APPLICATION_ID, TABLES, VERSION, Record, crc
from tracer.capture.replay.capture_reader import CaptureReader
from tracer.events import record

BOMB = 64 << 20
"""Size of some compressed values after decompression, bytes."""


@dataclass
class Parts:
    """A capture, taken apart. meta: name -> JSON. records: [turn, kind, key, JSON].

    batches: [turn, began, ended, events, turns, slots].
    """

    meta: list[list[Any]] = field(default_factory=list)
    records: list[list[Any]] = field(default_factory=list)
    batches: list[list[Any]] = field(default_factory=list)


def taken_apart(path: Path) -> Parts:
    with CaptureReader(str(path)) as capture, sqlite3.connect(f"file:{path}?immutable=1", uri=True) as connection:
        parts = Parts()
        for name, value in connection.execute("SELECT name, value FROM meta ORDER BY seq"):
            parts.meta.append([name, unpack(value)])
        for turn, kind, key, body in connection.execute("SELECT turn, kind, key, body FROM records ORDER BY seq"):
            parts.records.append([turn, kind, key, unpack(body)])
        layout: RecordLayout = capture.layout
        rows = "SELECT turn, began, ended, events, turns, slots FROM batches ORDER BY seq"
        for turn, began, ended, events, turns, slots in connection.execute(rows):
            counts = unpack(turns)
            parts.batches.append([turn, began, ended, events, counts, layout.unpack(slots, sum(n for _, n, _ in counts))])
        return shortened(parts)


def shortened(parts: Parts) -> Parts:
    """Removes most turns without events, which a waiting run has many of; the last one stays."""
    full = [b for b in parts.batches[:-1] if len(b[5])]
    empty = [b for b in parts.batches[:-1] if not len(b[5])]
    for one in parts.batches:
        some = max((n for n, (_, count, _) in enumerate(one[4]) if count), default=0)
        one[4] = one[4][: some + 4]
    parts.batches = sorted([*full, *empty[:2], parts.batches[-1]], key=lambda b: int(b[0]))
    return parts


Packed = tuple[bytes, bytes]
"""A value as JSON, and compressed."""


def packed(value: Any, dice: random.Random, unchanged: dict[int, Packed]) -> Any:
    """The value as stored in the column: sometimes compressed although it is short.

    unchanged: packed values of the bases, by id(): nearly all values of a case are unchanged, and need not be packed again.
    """
    text, small = unchanged.get(id(value)) or (values.text(value, dice), b"")
    return small or zlib.compress(text, 1) if len(text) > 400 or dice.random() < 0.05 else text


class Maker:
    """Makes the files of one seed. bases: captures, taken apart."""

    def __init__(self, bases: list[Parts]) -> None:
        self._bases = bases
        some = random.Random(0)
        inside = [v for b in bases for v in (*(m[1] for m in b.meta), *(r[3] for r in b.records), *(b[4] for b in b.batches))]
        texts = ((id(v), values.text(v, some)) for v in inside if isinstance(v, list | dict))
        self._packed: dict[int, Packed] = {key: (text, zlib.compress(text, 1)) for key, text in texts}
        self._stored = {id(b[5]): _stored(b[5]) for base in bases for b in base.batches}

    def content(self, dice: random.Random) -> bytes:
        """One hostile capture."""
        base = dice.choice(self._bases)
        meta = [list(m) for m in base.meta]
        records = [list(r) for r in base.records]
        batches = [list(b) for b in base.batches]
        for _ in range(dice.choice((1, 1, 1, 2, 3))):
            dice.choices((_meta, _record, _batch, _slots, _rows), (3, 8, 2, 3, 1))[0](meta, records, batches, dice)
        kept: list[list[tuple[Any, ...]]] = [
            [(name, self._pack(value, dice)) for name, value in meta],
            [(turn, kind, key, self._pack(body, dice)) for turn, kind, key, body in records],
            [
                (turn, began, ended, events, self._pack(turns, dice), self._slots(slots))
                for turn, began, ended, events, turns, slots in batches
            ],
        ]
        if dice.random() < 0.1:
            _column(dice.choice(kept), dice)
        if dice.random() < 0.01:
            _bomb(dice.choice(kept), dice)
        return written(kept, _schema(dice) if dice.random() < 0.05 else "")

    def _pack(self, value: Any, dice: random.Random) -> Any:
        return value if isinstance(value, bytes) else packed(value, dice, self._packed)

    def _slots(self, slots: Any) -> bytes:
        return slots if isinstance(slots, bytes) else self._stored.get(id(slots)) or _stored(slots)


def _stored(slots: Any) -> bytes:
    return zlib.compress(slots.T.tobytes(), 1)


def _meta(meta: Any, records: Any, batches: Any, dice: random.Random) -> None:
    one = dice.choice(meta)
    one[1] = values.changed(one[1], dice, dice.choice((1, 1, 2, 4)))


def _record(meta: Any, records: Any, batches: Any, dice: random.Random) -> None:
    """Changes a record. Its kind is chosen first, because some kinds have many records."""
    kind = dice.choice(sorted({r[1] for r in records}))
    one = dice.choice([r for r in records if r[1] == kind])
    way = dice.random()
    if kind in (Record.READING, Record.CONNTRACK, Record.RULESET) and dice.random() < 0.5:
        # An earlier change of this case may have removed the bytes.
        with suppress(ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
            _octets(one, dice)
    elif way < 0.85:
        one[3] = values.changed(one[3], dice, dice.choice((1, 1, 2, 4)))
    elif way < 0.9:
        one[0] = dice.choice((0, 1, 2, 5, 1 << 40, -1, one[0] + 1))
    elif way < 0.95:
        one[1] = dice.choice(list(Record)).value
    else:
        one[2] = dice.choice(values.TEXTS)


def _octets(one: list[Any], dice: random.Random) -> None:
    """Changes bytes of a legacy table, of a conntrack message, or of the slots of a look-up."""
    body = one[3] = values.copied(one[3])
    container: Any = body
    key: Any = "bytes"
    if one[1] == Record.READING:
        container, key = body["table"], "blob"
    elif one[1] == Record.CONNTRACK:
        container, key = dice.choice(body), 1
    data = bytearray(base64.b64decode(container[key]))
    for _ in range(dice.choice((1, 1, 2, 4, 16)) if data else 0):
        at, content = (
            dice.randrange(len(data)),
            dice.choice((b"\0", b"\xff", b"\xff\xff\xff\xff", dice.randbytes(1), dice.randbytes(8))),
        )
        data[at : at + len(content)] = content
    container[key] = base64.b64encode(bytes(data)).decode()


def _batch(meta: Any, records: Any, batches: Any, dice: random.Random) -> None:
    one = dice.choice(batches)
    if dice.random() < 0.6:
        one[4] = values.changed(one[4], dice, dice.choice((1, 1, 3)))
    else:
        one[dice.randrange(4)] = dice.choice((0, -1, 1, 1 << 40, (1 << 63) - 1, -(1 << 63), 10**18))


def _slots(meta: Any, records: Any, batches: Any, dice: random.Random) -> None:
    """Changes events: whole fields by their offset, or bytes anywhere after the lengths."""
    one = dice.choice([b for b in batches if not isinstance(b[5], bytes)])
    slots = one[5] = one[5].copy()
    if not len(slots):
        return
    lengths = slots[:, :4].copy().view("<u4").ravel()
    starts = np.flatnonzero(lengths)
    for _ in range(dice.choice((1, 1, 2, 8))):
        if dice.random() < 0.7 and len(starts):
            start = int(dice.choice(starts))
            name = dice.choice(record.DTYPE.names or ("kind",))
            at = 8 + field_offset(record.DTYPE, name)
            size = record.DTYPE[name].itemsize
            flat = slots[start:].reshape(-1)
            content = dice.choice(
                (b"\0" * size, b"\xff" * size, dice.randbytes(size), bytes([dice.randrange(64)]) + b"\0" * (size - 1))
            )
            flat[at : at + size] = np.frombuffer(content[: max(0, len(flat) - at)], np.uint8)[: max(0, len(flat) - at)]
        else:
            row = dice.randrange(len(slots))
            slots[row, dice.randrange(slots.shape[1])] = dice.randrange(256)


def _rows(meta: Any, records: Any, batches: Any, dice: random.Random) -> None:
    """Removes, doubles or exchanges rows."""
    rows = dice.choice((meta, records, batches))
    if len(rows) < 2:
        return
    one, other = dice.randrange(len(rows)), dice.randrange(len(rows))
    way = dice.random()
    if way < 0.3:
        del rows[one]
    elif way < 0.6:
        rows.insert(one, list(rows[other]))
    else:
        rows[one], rows[other] = rows[other], rows[one]


def _column(rows: Any, dice: random.Random) -> None:
    """Gives a column of one row a wrong type."""
    if rows:
        at = dice.randrange(len(rows))
        row = list(rows[at])
        row[dice.randrange(len(row))] = dice.choice(
            (None, "x", b"", b"\x78", b"\x78\x01", 1.5, float("inf"), -1, 1 << 62, "", "\0")
        )
        rows[at] = tuple(row)


def _bomb(rows: Any, dice: random.Random) -> None:
    """Puts in a value that is small in the file and large in memory."""
    if rows:
        at = dice.randrange(len(rows))
        row = list(rows[at])
        blobs = [n for n, value in enumerate(row) if isinstance(value, bytes)]
        unit = dice.choice((b"\0", b" ", b"[],", b"{},", b"0,", b'"",', b'{"":', b"[", b'{"tuple":['))
        row[dice.choice(blobs or range(len(row)))] = _bomb_of(unit)
        rows[at] = tuple(row)


@cache
def _bomb_of(unit: bytes) -> bytes:
    return zlib.compress(b"[" + unit * (BOMB // len(unit)) + b"0]", 9)


_SCHEMAS = (
    "DROP TABLE {table}; CREATE VIEW {table} AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n)"
    " SELECT i AS seq, 0 AS turn, 'note' AS kind, '' AS key, '1' AS body, 0 AS crc, '' AS name, '1' AS value, 0 AS began,"
    " 0 AS ended, 0 AS events, '[]' AS turns, x'' AS slots FROM n",
    "DROP TABLE {table}",
    "ALTER TABLE {table} RENAME TO was; CREATE VIEW {table} AS SELECT * FROM was",
    "ALTER TABLE {table} RENAME TO was; CREATE VIEW {table} AS SELECT a.* FROM was a, was b, was c, was d, was e",
    "CREATE TRIGGER t AFTER INSERT ON {table} BEGIN DELETE FROM meta; END",
    "CREATE INDEX i ON {table} (seq, crc)",
    "CREATE VIEW other AS SELECT randomblob(1000000000)",
    "CREATE TABLE other (a, b)",
    "ALTER TABLE {table} ADD COLUMN more",
    "ALTER TABLE {table} RENAME COLUMN crc TO crcs",
    "ALTER TABLE {table} RENAME COLUMN crc TO c; ALTER TABLE {table} ADD COLUMN crc AS (zeroblob(500000000)) VIRTUAL",
    "CREATE TABLE new AS SELECT * FROM {table}; DROP TABLE {table}; ALTER TABLE new RENAME TO {table}",
    "UPDATE {table} SET seq = seq * 1000000007",
    "UPDATE {table} SET seq = -seq",
    "DELETE FROM {table}",
    "PRAGMA user_version = 0",
    "PRAGMA user_version = 99",
    "PRAGMA encoding = 'UTF-16'",
)  # fmt: skip


def _schema(dice: random.Random) -> str:
    return dice.choice(_SCHEMAS).format(table=dice.choice(("meta", "records", "batches")))


def written(parts: list[list[tuple[Any, ...]]], then: str = "") -> bytes:
    """A file with these rows and their checksums. then: SQL that runs at the end."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {VERSION}")
    connection.executescript(TABLES)
    columns = ("meta (name, value", "records (turn, kind, key, body", "batches (turn, began, ended, events, turns, slots")
    connection.execute("BEGIN")
    for table, rows in zip(columns, parts, strict=True):
        places = ", ".join("?" * (table.count(",") + 2))
        for row in rows:
            try:
                connection.execute(f"INSERT INTO {table}, crc) VALUES ({places})", (*row, crc(row)))
            except (OverflowError, UnicodeEncodeError):
                continue
    connection.execute("COMMIT")
    with suppress(sqlite3.Error):
        connection.executescript(then)
    content = connection.serialize()
    connection.close()
    return content


def sparse(path: Path, content: bytes, dice: random.Random) -> None:
    """Writes a file, sometimes with a hole at its end, or with a sparse journal next to it."""
    beside = path.with_name(path.name + "-journal")
    if beside.exists():
        beside.unlink()
    path.write_bytes(content)
    if dice.random() < 0.01:
        os.truncate(path, 1 << 36)
    if dice.random() < 0.02:
        head = struct.pack(">8sIIIII", bytes.fromhex("d9d505f920a163d7"), dice.choice((0, 1, 0xFFFFFFFF)), 0,
                           dice.choice((1, len(content) // 4096, 1 << 31)), 512, 4096)  # fmt: skip
        beside.write_bytes(head.ljust(512, b"\0"))
        os.truncate(beside, dice.choice((512, 1 << 36)))
