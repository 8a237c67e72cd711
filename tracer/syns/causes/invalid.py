# SPDX-License-Identifier: Apache-2.0
"""Conntrack calls it INVALID, so no translation was made for it. Observed where a rule that asks for that state dropped it;
derived where the hooks saw it without an entry in a namespace that tracks connections."""

from __future__ import annotations

from tracer.model import Evidence
from tracer.syns.causes import _words
from tracer.syns.model import Attempt, Cause
from tracer.syns.spaces import Spaces


def why(attempt: Attempt, spaces: Spaces) -> Cause | None:
    hop = next((h for h in _words.hops(attempt) if h.verdict == "DROP" and h.what in ("table", "chain")), None)
    matched = bool(hop and _words.asks_for_invalid(hop))
    if attempt.syn.untracked != "INVALID" and not matched:
        return None
    end = f"DROPped in {_words.table_of(hop)}{_words.whose(hop)}" if hop else attempt.syn.verdict
    return Cause(
        "conntrack INVALID",
        f"conntrack state INVALID{attempt.where}: {end}",
        Evidence.OBSERVED if matched else Evidence.DERIVED,
    )
