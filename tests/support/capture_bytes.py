# SPDX-License-Identifier: Apache-2.0
"""All bytes of a capture, to search for values that must not be in it."""

from __future__ import annotations

import sqlite3
import zlib
from pathlib import Path

import numpy as np

from tracer.capture.format import record_layout


def everything(path: Path) -> bytes:
    """The bytes of a file as they are, followed by its compressed values decompressed."""
    parts = [path.read_bytes()]
    with sqlite3.connect(path) as connection:
        for table in ("meta", "records", "batches"):
            for row in connection.execute(f"SELECT * FROM {table}"):
                parts += [zlib.decompress(v) for v in row if isinstance(v, bytes) and v[:1] == b"\x78"]
        for (slots,) in connection.execute("SELECT slots FROM batches"):
            columns = np.frombuffer(zlib.decompress(slots), np.uint8).reshape(record_layout.SLOT, -1)
            parts.append(np.ascontiguousarray(columns.T).tobytes())
    return b"\0".join(parts)
