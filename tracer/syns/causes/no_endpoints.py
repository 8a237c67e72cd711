# SPDX-License-Identifier: Apache-2.0
"""The Service has no endpoints: kube-proxy's own REJECT or DROP for that. Observed: the rule acted, and says so."""

from __future__ import annotations

from tracer.syns.causes import _words
from tracer.syns.model import Attempt, Cause
from tracer.syns.spaces import Spaces


def why(attempt: Attempt, spaces: Spaces) -> Cause | None:
    for hop in _words.hops(attempt):
        rule = hop.walk.decision.rule if hop.walk and hop.walk.decision and not hop.walk.decision.hotdrop else None
        says = f"{rule.comment} {rule.text}" if rule else ""
        if hop.verdict in ("REJECT", "DROP") and ("has no endpoints" in says or "no local endpoints" in says):
            with_ = f" with {hop.reject}" if hop.reject else ""
            done = "rejected" if hop.verdict == "REJECT" else "dropped"
            return Cause("no endpoints", f"no endpoint: {done} in {_words.table_of(hop)}{with_}{_words.whose(hop)}")
    return None
