# SPDX-License-Identifier: Apache-2.0
"""The two ends of a packet or of one direction of a connection."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Endpoints:
    """Source and destination of one direction of a connection. Ports are 0 if the protocol has none."""

    src: str
    sport: int
    dst: str
    dport: int

    @property
    def reversed(self) -> Endpoints:
        return Endpoints(self.dst, self.dport, self.src, self.sport)
