# SPDX-License-Identifier: Apache-2.0
"""A rule or a policy dropped it. Observed: the table's verdict. That conntrack calls it INVALID is another cause."""

from __future__ import annotations

from tracer.syns.causes import _words
from tracer.syns.model import Attempt, Cause
from tracer.syns.spaces import Spaces


def why(attempt: Attempt, spaces: Spaces) -> Cause | None:
    hop = next((h for h in _words.hops(attempt) if h.what in ("table", "chain") and h.verdict == "DROP"), None)
    if not hop or attempt.syn.untracked == "INVALID" or _words.asks_for_invalid(hop):
        return None
    return Cause("dropped by rule", f"DROPped in {_words.table_of(hop)}{attempt.where}{_words.whose(hop)}")
