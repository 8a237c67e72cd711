# SPDX-License-Identifier: Apache-2.0
"""What a capture is made of: an SQLite file of three tables.

`meta` says what never changes in a run. `batches` has the turns and the ring slots drained in them, some in a row, columns
first and compressed. `records` has everything else, in the order it happened, each with the turn in which it counts.
"""

from __future__ import annotations

import zlib
from enum import StrEnum
from typing import Any

VERSION = 1
"""Of the format; tracer/capture/format/migrations.py has the way from each older one."""

APPLICATION = 0x6B387374
"""SQLite's application_id: "k8st"."""

TABLES = """
CREATE TABLE meta (seq INTEGER PRIMARY KEY, name TEXT, value BLOB, crc INTEGER);
CREATE TABLE records (seq INTEGER PRIMARY KEY, turn INTEGER, kind TEXT, key TEXT, body BLOB, crc INTEGER);
CREATE TABLE batches (seq INTEGER PRIMARY KEY, turn INTEGER, began INTEGER, ended INTEGER, events INTEGER,
    turns BLOB, slots BLOB, crc INTEGER);
"""
"""crc: of the other columns but seq, see `crc`.

records.key: what of its kind it is, for people and SQL. batches.turn: number of its first turn; began, ended: ns since the
epoch; turns: JSON, [now, slots, last] of each turn; slots: of all its turns, transposed, compressed.
"""


ALL = "all"
"""`meta.answers`: every answer is in the records, also one that says nothing; without one, a question was not asked."""


class Record(StrEnum):
    """What a record tells."""

    ANSWER = "answer"
    """A question was answered in another way than before: [question, how many times asked in this turn, answer]."""
    OBJECTS = "objects"
    """Something was done to the store of Kubernetes' objects: [what, kind, bodies]."""
    SANDBOXES = "sandboxes"
    """The CNI result cache as it was read: [questions asked of it in this turn, sandboxes]."""
    READING = "reading"
    """A legacy table was read: tracer/capture/format/rulesets.py."""
    RULESET = "ruleset"
    """Ring slots that tell of look-ups and replacements of legacy tables, once more: they outlive their batch."""
    NFT = "nft"
    """A look at a namespace's nftables rules: tracer/capture/format/rulesets.py."""
    CHANGE = "change"
    """Rules or objects were replaced, as a timeline tells it: [time, text] of each."""
    CONNTRACK = "conntrack"
    """What conntrack told of its entries: [time, netlink's message] of each."""
    LOSS = "loss"
    """Events were lost on the way from the probes."""
    GAP = "gap"
    """Events that are not in the file: [how many, why]."""
    NOTE = "note"
    """The user was told something."""
    FILTER = "filter"
    """The probes got another filter: [when, what is asked for as [address, port, protocol] each, hosts, ports]."""
    LEFT = "left"
    """The run was made to end: of this turn's packets so many parcels were explained, and nothing after them."""
    END = "end"
    """The run ended as it should: [its seconds, number of its last turn]."""


def crc(row: tuple[Any, ...]) -> int:
    """CRC-32 of a row's columns as they are stored: SQLite itself has no check sums."""
    found = 0
    for value in row:
        found = zlib.crc32(value if isinstance(value, bytes) else str(value).encode(errors="surrogateescape"), found)
    return found
