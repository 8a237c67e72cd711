# SPDX-License-Identifier: Apache-2.0
"""Copies the hours of a store that are over into tables of an Iceberg catalogue, through pyiceberg.

The files of the store are not registered where they are (`add_files`): the name of the node is in their path only, so Iceberg
would read NULL, and a later compaction removes files, which Iceberg would miss.

The rows of one table, hour and node are replaced in one commit that also names the files they come from. So a second run does
nothing, an hour with later rows is replaced, and of two writers the second one finds the commit of the first.
"""

from __future__ import annotations

import hashlib
import random
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tracer.analysis.table_schema import ColumnType
from tracer.errors import BadOption, StoreUnreachable
from tracer.store import arrow_dataset
from tracer.store.bucket import Bucket, StoredObject
from tracer.store.partition import HOUR_US, Partition
from tracer.store.selected_files import SelectedFiles, StoreSelection, select
from tracer.store.stored_tables import column_types
from tracer.util.optional import require_optional

PARTITION, FILES = "k8snet-trace.partition", "k8snet-trace.files"
"""Properties of a snapshot: the directory of the store, and the digest of the names and sizes of its files."""
IN_PATH = ("date", "hour", "node")
"""Columns that are in the path of a file; they partition the table of Iceberg."""
ATTEMPTS = 20
"""Attempts of one commit. Each one fails only because another writer has committed."""
LONGEST_PAUSE_SECONDS = 2.0


@dataclass
class PublishedHours:
    """Totals of a run.

    Attributes:
        replaced: Partitions that were written.
        same: Partitions that were there already.
        rows: Number of the rows that were written.
        conflicts: Commits that were tried again, because another writer had committed. pyiceberg itself repeats a commit that
            is not about the same partition; this one is not counted.
    """

    replaced: int = 0
    same: int = 0
    rows: int = 0
    conflicts: int = 0


def open_catalog(text: str) -> tuple[Any, str]:
    """The catalogue and the namespace of CATALOG.NAMESPACE; pyiceberg's own configuration says where the catalogue is.

    Raises:
        BadOption: It has no such form, or there is no such catalogue.
        NoLibrary: pyiceberg is not installed.
    """
    name, _, namespace = text.partition(".")
    if not name or not namespace:
        raise BadOption(f"--iceberg {text!r} is not CATALOG.NAMESPACE.")
    pyiceberg: Any = require_optional("pyiceberg.catalog", "compact --iceberg")
    errors: Any = require_optional("pyiceberg.exceptions", "compact --iceberg")
    try:
        return pyiceberg.load_catalog(name), namespace
    except (ValueError, KeyError, errors.NoSuchTableError) as e:
        raise BadOption(f"The catalogue {name} cannot be used: {e} pyiceberg reads .pyiceberg.yaml.") from e


def publish(
    bucket: Bucket, catalog: Any, namespace: str, now_us: int, hours: int, sleep: Callable[[float], None] = time.sleep
) -> PublishedHours:
    """Brings all hours that are over to the catalogue.

    Args:
        bucket: The store.
        catalog: The catalogue.
        namespace: Where the tables are; it and they are created.
        now_us: The time, us since the epoch.
        hours: Hours after which an hour counts as over.
        sleep: Waits some seconds.

    Raises:
        StoreUnreachable: The storage or the catalogue does not do what it should.
        NewerCapture: A file is of a newer version.
    """
    errors: Any = require_optional("pyiceberg.exceptions", "compact --iceberg")
    try:
        return _publish(bucket, catalog, namespace, now_us, hours, sleep)
    except (errors.RESTError, OSError) as e:
        why = (str(e).partition("\n")[0] or type(e).__name__)[:300].rstrip(".")
        raise StoreUnreachable(f"The Iceberg catalogue does not do what it should: {why}. Run it again.") from e


def _publish(
    bucket: Bucket, catalog: Any, namespace: str, now_us: int, hours: int, sleep: Callable[[float], None]
) -> PublishedHours:
    done = PublishedHours()
    until = max(1, (now_us // HOUR_US - hours) * HOUR_US)
    files = select(bucket, StoreSelection(0, until, ()))
    catalog.create_namespace_if_not_exists(namespace)
    for name, stored in files.tables.items():
        by_partition: dict[Partition, list[StoredObject]] = defaultdict(list)
        for partition, each in stored:
            if (partition.hour + 1 + hours) * HOUR_US <= now_us:
                by_partition[partition].append(each)
        if by_partition:
            table = _table(catalog, namespace, name)
            for partition in sorted(by_partition):
                _replace(bucket, table, partition, by_partition[partition], done, sleep)
    return done


def _table(catalog: Any, namespace: str, name: str) -> Any:
    """The table of Iceberg, made where it is not there, with the columns that a later version has added."""
    schemas: Any = require_optional("pyiceberg.schema", "compact --iceberg")
    types: Any = require_optional("pyiceberg.types", "compact --iceberg")
    specs: Any = require_optional("pyiceberg.partitioning", "compact --iceberg")
    transforms: Any = require_optional("pyiceberg.transforms", "compact --iceberg")
    of_type = {
        ColumnType.BIGINT: types.LongType(), ColumnType.BOOLEAN: types.BooleanType(),
        ColumnType.TIMESTAMP: types.TimestampType(), ColumnType.VARCHAR: types.StringType(),
    }  # fmt: skip
    columns: Mapping[str, ColumnType] = {"date": ColumnType.VARCHAR, "hour": ColumnType.VARCHAR} | column_types(name)
    numbers = {column: number for number, column in enumerate(columns, 1)}
    fields = [types.NestedField(numbers[column], column, of_type[kind], required=False) for column, kind in columns.items()]
    schema, identity = schemas.Schema(*fields), transforms.IdentityTransform()
    spec = specs.PartitionSpec(
        *(specs.PartitionField(numbers[each], 1000 + at, identity, each) for at, each in enumerate(IN_PATH))
    )
    table = catalog.create_table_if_not_exists(f"{namespace}.{name}", schema=schema, partition_spec=spec)
    if missing := [column for column in columns if column not in table.schema().column_names]:
        with table.update_schema() as update:
            for column in missing:
                update.add_column(column, of_type[columns[column]])
    return table


def _published(table: Any) -> dict[str, str]:
    """The digests of the partitions that are in a table, by their directories. Snapshots that have expired are not known."""
    found: dict[str, str] = {}
    for snapshot in table.metadata.snapshots:
        said = snapshot.summary.additional_properties if snapshot.summary else {}
        if PARTITION in said:
            found[said[PARTITION]] = said.get(FILES, "")
    return found


def _replace(
    bucket: Bucket, table: Any, partition: Partition, files: Sequence[StoredObject], done: PublishedHours,
    sleep: Callable[[float], None],
) -> None:  # fmt: skip
    """Replaces the rows of one partition, unless they are there."""
    errors: Any = require_optional("pyiceberg.exceptions", "compact --iceberg")
    said = repr(sorted((each.path, each.size) for each in files)).encode()
    digest, directory = hashlib.sha256(said).hexdigest(), partition.directory
    rows: Any = None
    for attempt in range(ATTEMPTS):
        if _published(table).get(directory) == digest:
            done.same += rows is None
            return
        rows = _rows(bucket, table, partition, files) if rows is None else rows
        try:
            _commit(table, partition, rows, {PARTITION: directory, FILES: digest})
        except (errors.CommitFailedException, errors.ValidationException):
            # The second one: pyiceberg has tried again by itself, and found rows of this partition that it did not know.
            done.conflicts += 1
            sleep(random.uniform(0, min(LONGEST_PAUSE_SECONDS, 0.05 * 2**attempt)))
            table.refresh()
            continue
        done.replaced += 1
        done.rows += rows.num_rows
        return
    raise StoreUnreachable(f"{directory} was not committed: {ATTEMPTS} times another writer was faster. Run it again.")


def _rows(bucket: Bucket, table: Any, partition: Partition, files: Sequence[StoredObject]) -> Any:
    """The rows of a partition with the columns of its path, in the order and with the types of the table."""
    arrow: Any = require_optional("pyarrow", "a store")
    selected = SelectedFiles({partition.table: [(partition, each) for each in files]})
    rows = arrow_dataset.make(bucket, selected, partition.table).to_table()
    for name, value in _place(partition).items():
        if name in rows.column_names:
            rows = rows.drop_columns([name])
        rows = rows.append_column(name, arrow.array([value] * rows.num_rows, arrow.string()))
    return rows.select([*column_types(partition.table), "date", "hour"])


def _place(partition: Partition) -> dict[str, str]:
    """The values of IN_PATH."""
    _, date, hour, _ = partition.directory.split("/")
    return {"date": date.partition("=")[2], "hour": hour.partition("=")[2], "node": partition.node}


def _commit(table: Any, partition: Partition, rows: Any, properties: Mapping[str, str]) -> None:
    """Replaces the rows of a partition in one transaction."""
    expressions: Any = require_optional("pyiceberg.expressions", "compact --iceberg")
    equal = [expressions.EqualTo(name, value) for name, value in _place(partition).items()]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "did not match any records": there were none of this partition
        table.overwrite(rows, overwrite_filter=expressions.And(*equal), snapshot_properties=dict(properties))
