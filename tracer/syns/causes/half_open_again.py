# SPDX-License-Identifier: Apache-2.0
"""A SYN sent again while its connection is half-open: the SYN-ACK or the last ACK was lost. Observed: the half-open connection
took it, and answered again."""

from __future__ import annotations

from tracer.syns.causes import _words
from tracer.syns.model import Attempt, Cause
from tracer.syns.spaces import Spaces


def why(attempt: Attempt, spaces: Spaces) -> Cause | None:
    if not any(h.handshake and h.handshake.stage == "request" for h in _words.hops(attempt)):
        return None
    done = "then connected" if _words.connected(attempt) in ("connected", "acknowledged") else "SYN-ACK sent once more"
    return Cause("half-open already", f"repeated, its connection is half-open already{attempt.where}: {done}", good=True)
