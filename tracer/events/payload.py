# SPDX-License-Identifier: Apache-2.0
"""A packet's own bytes, which `--snaplen` asks for, out of the records that have them (bpf/records/payload.h)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tracer.events import cstruct, record
from tracer.events.record import Kind

RAW = cstruct.dtype("records/payload.h", "payload_record")
Pieces = dict[int, bytes]
"""By where in the packet they stand, from the IP header on."""


def split(batch: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], list[tuple[int, int, bytes]]]:
    """A batch without these records; and of each the packet, where in it the bytes stand, and the bytes."""
    chosen = batch["kind"] == Kind.EVENT_RAW
    if not chosen.any():
        return batch, []
    rows = batch[chosen].view(RAW)
    data = np.concatenate([rows["bytes_1"], rows["bytes_2"], rows["bytes_3"]], axis=1)
    told = zip(rows["packet"].tolist(), rows["first"].tolist(), rows["count"].tolist(), data, strict=True)
    return batch[~chosen], [(packet, first, piece[:count].tobytes()) for packet, first, count, piece in told]


def joined(pieces: Pieces) -> bytes:
    """The bytes from the packet's first on, up to where some are missing."""
    found = b""
    for first, piece in sorted(pieces.items()):
        if first != len(found):
            break
        found += piece
    return found


assert RAW.itemsize == record.DTYPE.itemsize
