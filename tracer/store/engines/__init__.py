# SPDX-License-Identifier: Apache-2.0
"""Engines that answer SQL from the files of a store. Each one is a file of this package, found by its file name.

Its `ENGINE` is a function: ENGINE(bucket, files, selection, scratch, stop) gives a block with a function that runs one
query. The SQL is given to the engine as it is: the saved queries are the same for all engines.

Must not know: how a result is printed, other engines.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cache
from pathlib import Path

from tracer.analysis.formats import QueryResult
from tracer.pipeline.shutdown import StopRequest
from tracer.store.bucket import Bucket
from tracer.store.selected_files import SelectedFiles, StoreSelection
from tracer.util.registry import Registry

Ask = Callable[[str], QueryResult]
Engine = Callable[[Bucket, SelectedFiles, StoreSelection, Path, StopRequest], AbstractContextManager[Ask]]
DEFAULT = "duckdb"
_ENGINES: Registry[Engine] = Registry(__name__, "ENGINE", kind="engine")


@cache
def names() -> tuple[str, ...]:
    """Returns the names of all engines."""
    return _ENGINES.names()


def find(name: str) -> Engine:
    """Returns an engine. Raises BadOption for an unknown name."""
    return _ENGINES.find(name)
