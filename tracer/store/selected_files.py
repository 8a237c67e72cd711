# SPDX-License-Identifier: Apache-2.0
"""The files of a store that a query needs: those of the wanted hours and nodes, found by the names of directories."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from tracer.errors import StoreUnreachable
from tracer.store import parquet_file
from tracer.store.bucket import Bucket, StoredObject, is_hidden
from tracer.store.partition import HOUR_US, Partition, parse
from tracer.store.stored_tables import names

NOTE_PREFIX = "_compacted-"
"""First characters of the name of a note of the compaction."""


@dataclass(frozen=True)
class StoreSelection:
    """What of a store is wanted.

    Attributes:
        since: First time, us since the epoch; 0 = from the beginning.
        until: Time before which events are, us since the epoch; 0 = to the end.
        nodes: Names of nodes; () = all.
    """

    since: int = 0
    until: int = 0
    nodes: tuple[str, ...] = ()

    def has_hour(self, hour: int) -> bool:
        """Whether an hour can have wanted rows."""
        return (not self.since or (hour + 1) * HOUR_US > self.since) and (not self.until or hour * HOUR_US < self.until)

    def has_node(self, node: str) -> bool:
        return not self.nodes or node in self.nodes

    def condition(self, literal: Callable[[int], str] | None = None) -> str:
        """The condition on rows in SQL; "" = none. Times are those of the column `event_at`.

        Args:
            literal: Gives the SQL of a time, us since the epoch; None = that of the SQL standard.
        """
        spelled = literal or _literal
        found = [f"event_at >= {spelled(self.since)}"] if self.since else []
        found += [f"event_at < {spelled(self.until)}"] if self.until else []
        return " AND ".join(found)


def _literal(us: int) -> str:
    at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=us)
    return f"TIMESTAMP '{at:%Y-%m-%d %H:%M:%S}.{us % 1_000_000:06d}'"


@dataclass
class SelectedFiles:
    """The files of each table, with their partitions.

    Attributes:
        tables: By table: (partition, object) for each file.
    """

    tables: dict[str, list[tuple[Partition, StoredObject]]] = field(default_factory=dict)

    @property
    def count(self) -> int:
        return sum(map(len, self.tables.values()))

    @property
    def nodes(self) -> set[str]:
        return {partition.node for files in self.tables.values() for partition, _ in files}


def select(bucket: Bucket, selection: StoreSelection, tables: Sequence[str] = ()) -> SelectedFiles:
    """Finds the files of a store.

    Args:
        bucket: The store.
        selection: What of it is wanted.
        tables: Names of tables; () = all.

    Raises:
        StoreUnreachable: The storage does not answer, or there is no store.
        NewerCapture: A file is of a newer version.
    """
    wanted = tables or names()
    there = set(bucket.directories(""))
    if not there & set(names()):
        raise StoreUnreachable(f"There is no store at {bucket.url}: it has none of the tables {', '.join(names())}.")
    return SelectedFiles({table: list(_of_table(bucket, selection, table)) if table in there else [] for table in wanted})


def _of_table(bucket: Bucket, selection: StoreSelection, table: str) -> Iterator[tuple[Partition, StoredObject]]:
    for day in bucket.directories(table):
        first = parse(f"{table}/{day}/hour=00/node=x/x")
        if first is None or not any(selection.has_hour(first[0].hour + each) for each in range(24)):
            continue
        for hour in bucket.directories(f"{table}/{day}"):
            at = parse(f"{table}/{day}/{hour}/node=x/x")
            if at is not None and selection.has_hour(at[0].hour):
                yield from _of_hour(bucket, selection, f"{table}/{day}/{hour}")


def _of_hour(bucket: Bucket, selection: StoreSelection, path: str) -> Iterator[tuple[Partition, StoredObject]]:
    found: dict[Partition, list[StoredObject]] = defaultdict(list)
    notes: dict[Partition, list[str]] = defaultdict(list)
    for each in bucket.objects(path):
        place = parse(each.path)
        if place is None or not selection.has_node(place[0].node):
            continue
        if place[1].startswith(NOTE_PREFIX):
            notes[place[0]].append(each.path)
        elif not is_hidden(each.path) and parquet_file.check_version(each.path):
            found[place[0]].append(each)
    for partition, files in found.items():
        replaced = replaced_files(bucket, notes.get(partition, ()), {each.path for each in files})
        yield from ((partition, each) for each in files if each.path not in replaced)


def replaced_files(bucket: Bucket, notes: Sequence[str], paths: set[str]) -> set[str]:
    """The files that a compaction has replaced and not removed yet. notes: its notes; paths: the files of the directory."""
    replaced: set[str] = set()
    for note in notes:
        into, merged = read_note(bucket, note)
        if into in paths:
            replaced |= set(merged)
    return replaced


def read_note(bucket: Bucket, path: str) -> tuple[str, list[str]]:
    """What a note of the compaction says: the new file, and those that are in it; ("", []) if it is none."""
    try:
        content = json.loads(bucket.read(path))
        return str(content["into"]), [str(each) for each in content["merged"]]
    except (ValueError, KeyError, TypeError):
        return "", []
