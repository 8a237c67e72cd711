# SPDX-License-Identifier: Apache-2.0
"""A rule, or IPVS, answered it with an ICMP error or a TCP reset. Observed: the verdict, and the answer that was sent."""

from __future__ import annotations

from tracer.syns.causes import _words
from tracer.syns.model import Attempt, Cause
from tracer.syns.spaces import Spaces


def why(attempt: Attempt, spaces: Spaces) -> Cause | None:
    hop = next((h for h in _words.hops(attempt) if h.verdict == "REJECT"), None)
    if not hop:
        return None
    return Cause("rejected", f"REJECTed {_words.by(attempt.syn, hop)}{attempt.where}{_words.whose(hop)}")
