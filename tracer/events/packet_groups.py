# SPDX-License-Identifier: Apache-2.0
"""Groups the rows of a batch by packet."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tracer.events.record import EventArray


def by_packet(rows: EventArray) -> Iterator[tuple[int, EventArray]]:
    """Yields (packet identity, copy of its rows) in the order of the packets' first rows.

    Args:
        rows: Rows of one dtype that has a field `packet`.
    """
    if not len(rows):
        return
    order = np.argsort(rows["packet"], kind="stable")
    identities = rows["packet"][order]
    starts = np.concatenate(([0], np.flatnonzero(identities[1:] != identities[:-1]) + 1))
    ends = np.append(starts[1:], len(order)).tolist()
    groups = zip(order[starts].tolist(), identities[starts].tolist(), starts.tolist(), ends, strict=True)
    grouped = rows[order]
    for _, identity, start, end in sorted(groups):
        yield identity, grouped[start:end].copy()
