# SPDX-License-Identifier: Apache-2.0
"""Groups the rows of batches by packet."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tracer.events.record import EventArray


class PacketGroups:
    """The packets of a batch, in the order of their first rows.

    Args:
        packets: Identity of the packet of each row.

    Attributes:
        identities: Identity of each packet.
    """

    def __init__(self, packets: npt.NDArray[np.uint64]) -> None:
        self._order = np.argsort(packets, kind="stable")
        ordered = packets[self._order]
        starts = np.flatnonzero(np.append(len(packets) > 0, ordered[1:] != ordered[:-1]))
        ends = np.append(starts[1:], len(packets))
        # Not numpy's default sort, which is written for AVX: emulated processors of QEMU end it by a segmentation fault.
        by_first = np.argsort(self._order[starts], kind="stable")
        starts = starts[by_first]
        self._bounds = list(zip(starts.tolist(), ends[by_first].tolist(), strict=True))
        self.identities: list[int] = ordered[starts].tolist()

    def octets(self, rows: EventArray) -> list[bytes]:
        """The bytes of the rows of each packet. rows: as many as `packets`; nothing returned refers to them."""
        # `take` and a slice of bytes copy rows of a structure 10x faster than an index.
        grouped, size = rows.take(self._order).tobytes(), rows.itemsize
        return [grouped[start * size : end * size] for start, end in self._bounds]
