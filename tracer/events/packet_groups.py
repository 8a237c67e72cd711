# SPDX-License-Identifier: Apache-2.0
"""Groups the rows of batches by packet, and joins them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, cast

import numpy as np
import numpy.typing as npt

from tracer.events.record import EventArray

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


def by_packet(packets: npt.NDArray[np.uint64], rows: EventArray) -> Iterator[tuple[int, EventArray]]:
    """Yields (packet identity, copy of its rows) in the order of the packets' first rows.

    Args:
        packets: Identity of the packet of each row.
        rows: The rows.
    """
    if not len(rows):
        return
    order = np.argsort(packets, kind="stable")
    identities = packets[order]
    starts = np.concatenate(([0], np.flatnonzero(identities[1:] != identities[:-1]) + 1))
    ends = np.append(starts[1:], len(order)).tolist()
    groups = zip(order[starts].tolist(), identities[starts].tolist(), starts.tolist(), ends, strict=True)
    # `take` and a slice of bytes copy rows of a structure 10x faster than an index.
    grouped, size, dtype = rows.take(order).tobytes(), rows.itemsize, rows.dtype
    for _, identity, start, end in sorted(groups):
        yield identity, np.frombuffer(grouped[start * size : end * size], dtype)


def joined_rows(parts: Sequence[EventArray]) -> EventArray:
    """A read-only copy of the rows of several arrays of one dtype, 100x faster than `np.concatenate` of structured arrays."""
    return np.frombuffer(b"".join(cast("Iterable[ReadableBuffer]", parts)), parts[0].dtype)
