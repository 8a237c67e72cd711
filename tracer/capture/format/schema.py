# SPDX-License-Identifier: Apache-2.0
"""The format of a capture: an SQLite file with three tables.

`meta` has the values that do not change in a run. `batches` has the ring slots: one row is a chunk of consecutive batches,
stored by columns and compressed. `records` has everything else in the order of time, each record with the number of the batch
in which it is valid. In the tables a batch is called "turn".
"""

from __future__ import annotations

import zlib
from enum import StrEnum
from typing import Any

VERSION = 2
"""Version of the format. tracer/capture/format/migrations.py converts older versions."""
HOLDS_ANSWERS = 2
"""First version of captures of runs that keep an answer open until the packet that it answers is explained."""

APPLICATION_ID = 0x6B387374
"""SQLite's application_id: "k8st"."""

TABLES = """
CREATE TABLE meta (seq INTEGER PRIMARY KEY, name TEXT, value BLOB, crc INTEGER);
CREATE TABLE records (seq INTEGER PRIMARY KEY, turn INTEGER, kind TEXT, key TEXT, body BLOB, crc INTEGER);
CREATE TABLE batches (seq INTEGER PRIMARY KEY, turn INTEGER, began INTEGER, ended INTEGER, events INTEGER,
    turns BLOB, slots BLOB, crc INTEGER);
"""
"""Statements that create the tables.

crc: CRC-32 of the other columns except seq, see `crc`. records.turn: number of the batch. records.key: identifies the record
within its kind, for readers and SQL. batches.turn: number of the chunk's first batch; began, ended: ns since the epoch; turns:
JSON, [now, slots, last] of each batch; slots: of all batches, transposed, compressed.
"""

TYPES: dict[str, tuple[type, ...]] = {
    "meta": (str, bytes),
    "records": (int, str, str, bytes),
    "batches": (int, int, int, int, bytes, bytes),
}
"""Types of the values of each table, without seq and crc."""


ALL_ANSWERS = "all"
"""Value of `meta.answers`: the records have every answer, also default ones. A question without an answer was not asked."""


class Record(StrEnum):
    """The kinds of records. The comment on each kind describes its body."""

    ANSWER = "answer"
    """A question got a new answer: [question, number of this request in the batch, answer].

    The types of answers are in record_checks.py. Since version 2 that of ("node", "flannel") may be null: flannel's lease file
    is there and cannot be read.
    """
    OBJECTS = "objects"
    """A change of the store of Kubernetes objects: [what, kind, bodies]."""
    SANDBOXES = "sandboxes"
    """A reading of the CNI result cache: [number of lookups in this batch, sandboxes]."""
    READING = "reading"
    """A reading of a legacy table: tracer/capture/format/rulesets.py."""
    RULESET = "ruleset"
    """Copies of the ring slots with look-ups and replacements of legacy tables: they are kept longer than their chunk."""
    NFT = "nft"
    """A reading of a namespace's nftables rules: tracer/capture/format/rulesets.py."""
    CHANGE = "change"
    """Replaced rules or objects, as timeline entries: [time, text] of each."""
    CONNTRACK = "conntrack"
    """Events of conntrack entries: [time, netlink message] of each."""
    LOSS = "loss"
    """Events lost between the probes and the reader."""
    GAP = "gap"
    """Events that are missing in the file: [number, reason]."""
    NOTE = "note"
    """A message to the user."""
    FILTER = "filter"
    """A new filter of the probes: [time, [address, port, protocol] of each selected endpoint, hosts, ports]."""
    CLOCK = "clock"
    """The clock of the node against that of another machine, which collects captures: [offset, its largest error], ns.

    The offset is what is added to times of packets, ns since the epoch by the node, to get times of that machine.
    """
    LEFT = "left"
    """The run stopped explaining: number of chunks of packets that were explained in this batch, and none after them."""
    END = "end"
    """The run ended normally: [its duration in seconds, number of its last batch]."""


def is_sound(table: str, row: tuple[Any, ...], expected: object, version: int = VERSION) -> bool:
    """Whether a row of a table has the values that were written.

    The types are compared, too: SQLite stores them apart from the values, in the record header, and the check sum of a text is
    that of its bytes.

    Args:
        table: Name of the table.
        row: The columns except seq and crc.
        expected: The stored check sum.
        version: Version of the format.
    """
    return tuple(map(type, row)) == TYPES[table] and expected == crc(row, version)


def crc(row: tuple[Any, ...], version: int = VERSION) -> int:
    """CRC-32 of the stored columns of a row. SQLite itself has no check sums.

    The lengths are part of it: otherwise one damaged bit in SQLite's record header could move the boundary between two columns
    unnoticed, so that a name is not found. Version 1 did not have them.
    """
    found = 0
    for value in row:
        octets = value if isinstance(value, bytes) else str(value).encode(errors="surrogateescape")
        found = zlib.crc32(octets, found if version == 1 else zlib.crc32(b"%d:" % len(octets), found))
    return found
