# SPDX-License-Identifier: Apache-2.0
"""The files of a query in a directory of this machine, for engines that read paths: links to local ones, copies of others.

DIRECTORY/TABLE/node=NAME/NUMBER.parquet
"""

from __future__ import annotations

import os
from pathlib import Path

from tracer.store import parquet_file
from tracer.store.bucket import Bucket
from tracer.store.partition import quoted
from tracer.store.selected_files import SelectedFiles


def make(bucket: Bucket, files: SelectedFiles, directory: Path) -> None:
    """Fills the directory. Each table has at least one file, if only an empty one, so that it has a schema.

    Raises:
        StoreUnreachable: The storage does not answer.
        OSError: The directory cannot be written.
    """
    for table, found in files.tables.items():
        for number, (partition, each) in enumerate(found):
            place = directory / table / f"node={quoted(partition.node)}" / f"{number:06d}.parquet"
            place.parent.mkdir(parents=True, exist_ok=True)
            if bucket.is_local:
                os.symlink(bucket.full(each.path), place)
            else:
                with open(place, "wb") as file:
                    bucket.copy_to(each.path, file)
        if not found:
            place = directory / table / "node=none" / "000000.parquet"
            place.parent.mkdir(parents=True)
            place.write_bytes(parquet_file.encode(table, ()))
