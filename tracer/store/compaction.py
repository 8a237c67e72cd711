# SPDX-License-Identifier: Apache-2.0
"""Compaction: the small files of one table, hour and node become one file.

First a note is written that names the new file and those that are in it, then the new file, then the old ones are removed, then
the note. `query` ignores the old ones as soon as the new one is there; after a crash the next compaction goes on from the note.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tracer.store import parquet_file
from tracer.store.bucket import UPLOAD_PREFIX, Bucket, StoredObject, is_hidden
from tracer.store.partition import HOUR_US, Partition, parse
from tracer.store.selected_files import NOTE_PREFIX, read_note
from tracer.store.stored_tables import arrow_schema, names
from tracer.util.optional import require_optional

MOST_BYTES = 256 << 20
"""Largest size of the files that become one, bytes. Larger directories become several files."""
SETTLED_HOURS = 2
"""Hours after which an hour counts as over: agents send rows at most some minutes later, unless the store was away."""


@dataclass
class CompactionResult:
    """Totals of a compaction.

    Attributes:
        directories: Directories with more than one file.
        before: Number of their files.
        after: Number of the files that replaced them.
        bytes_before: Size of those, bytes.
        bytes_after: Size of these, bytes.
    """

    directories: int = 0
    before: int = 0
    after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0


def compact(bucket: Bucket, now_us: int, hours: int = SETTLED_HOURS) -> CompactionResult:
    """Compacts all directories of hours that are over.

    Args:
        bucket: The store.
        now_us: The time, us since the epoch.
        hours: Hours after which an hour counts as over.

    Raises:
        StoreUnreachable: The storage does not answer.
        NewerCapture: A file is of a newer version.
    """
    result = CompactionResult()
    for table in names():
        found: dict[Partition, list[StoredObject]] = defaultdict(list)
        for each in bucket.objects(table):
            place = parse(each.path)
            if place and (place[0].hour + 1 + hours) * HOUR_US <= now_us:
                found[place[0]].append(each)
        for partition, objects in found.items():
            files = _finished(bucket, objects)
            groups = [group for group in _groups(files) if len(group) > 1]
            result.directories += bool(groups)
            for group in groups:
                size = _merge(bucket, partition, group)
                result.before += len(group)
                result.after += 1
                result.bytes_before += sum(each.size for each in group)
                result.bytes_after += size
    return result


def _finished(bucket: Bucket, objects: Sequence[StoredObject]) -> list[StoredObject]:
    """The data files of a directory, after what an earlier compaction did not finish."""
    for each in objects:
        if each.path.rpartition("/")[2].startswith(UPLOAD_PREFIX):
            bucket.remove(each.path)  # an upload that broke
    files = {e.path: e for e in objects if not is_hidden(e.path) and parquet_file.check_version(e.path)}
    for note in (each.path for each in objects if each.path.rpartition("/")[2].startswith(NOTE_PREFIX)):
        into, merged = read_note(bucket, note)
        if into in files:
            for path in merged:
                if path in files:
                    bucket.remove(path)
                    del files[path]
        bucket.remove(note)
    return list(files.values())


def _groups(files: Sequence[StoredObject]) -> list[list[StoredObject]]:
    groups: list[list[StoredObject]] = []
    size = 0
    for each in files:
        if not groups or size + each.size > MOST_BYTES:
            groups.append([])
            size = 0
        groups[-1].append(each)
        size += each.size
    return groups


def _merge(bucket: Bucket, partition: Partition, group: Sequence[StoredObject]) -> int:
    """Replaces files by one. Returns its size, bytes."""
    arrow: Any = require_optional("pyarrow", "a store")
    parquet: Any = require_optional("pyarrow.parquet", "a store")
    schema = arrow_schema(arrow, partition.table)
    tables = []
    for each in group:
        content = parquet.read_table(arrow.BufferReader(bucket.read(each.path)))
        tables.append(content.select([name for name in schema.names if name in content.column_names]))
    whole = arrow.concat_tables([schema.empty_table(), *tables], promote_options="default")
    whole = whole.sort_by("event_at").replace_schema_metadata(schema.metadata)
    data = parquet_file.to_bytes(whole)
    paths = sorted(each.path for each in group)
    digest = hashlib.sha256("\n".join(paths).encode()).hexdigest()[:16]
    into = f"{partition.directory}/{parquet_file.file_name(f'compacted-{digest}')}"
    note = f"{partition.directory}/{NOTE_PREFIX}{digest}.json"
    bucket.put(note, json.dumps({"into": into, "merged": paths}).encode())
    bucket.put(into, data)
    for path in paths:
        if path != into:
            bucket.remove(path)
    bucket.remove(note)
    return len(data)
