# SPDX-License-Identifier: Apache-2.0
"""How full the ring buffer of this process was when it was last drained."""

from __future__ import annotations


class RingLevel:
    """One figure, which the reader of the ring buffer writes.

    Attributes:
        share: Share of the ring buffer that was full, 0 to 1.
    """

    def __init__(self) -> None:
        self.share = 0.0


ring_level = RingLevel()
"""The ring buffer of this process."""
