# SPDX-License-Identifier: Apache-2.0
"""Payload records: the bytes of packets, written with `--snaplen` (bpf/records/payload.h)."""

from __future__ import annotations

import numpy as np

from tracer.events import cstruct, record
from tracer.events.record import EventArray, Kind

RAW = cstruct.dtype("records/payload.h", "payload_record")
Pieces = dict[int, bytes]
"""Bytes of one packet, by their offset from the IP header."""


def split(batch: EventArray) -> tuple[EventArray, list[tuple[int, int, bytes]]]:
    """Separates the payload records of a batch from the other records.

    Returns:
        The other records, and (packet identity, offset from the IP header, bytes) of each payload record.
    """
    chosen = record.of_kinds(batch, Kind.EVENT_RAW)
    if not chosen.any():
        return batch, []
    rows = batch[chosen].view(RAW)
    data = np.concatenate([rows["bytes_1"], rows["bytes_2"], rows["bytes_3"]], axis=1)
    payloads = zip(rows["packet"].tolist(), rows["first"].tolist(), rows["count"].tolist(), data, strict=True)
    return batch[~chosen], [(packet, first, piece[:count].tobytes()) for packet, first, count, piece in payloads]


def joined(pieces: Pieces) -> bytes:
    """The bytes from offset 0 up to the first gap."""
    found = b""
    for first, piece in sorted(pieces.items()):
        if first != len(found):
            break
        found += piece
    return found


assert RAW.itemsize == record.DTYPE.itemsize
