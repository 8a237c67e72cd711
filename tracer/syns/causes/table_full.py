"""Conntrack's table was full. Observed: early_drop found nothing to remove, and the drop that followed on that CPU."""

from __future__ import annotations

from tracer.syns.model import Attempt, Cause
from tracer.syns.spaces import Spaces


def why(attempt: Attempt, spaces: Spaces) -> Cause | None:
    if not attempt.syn.clue("table-full"):
        return None
    counted = [spaces.setting(attempt.place, f"net/netfilter/nf_conntrack_{name}") for name in ("count", "max")]
    size = f" ({counted[0]} of {counted[1]} entries)" if all(counted) else ""
    return Cause("conntrack table full", f"dropped: conntrack's table is full{size}{attempt.where}")
