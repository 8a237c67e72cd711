"""Conntrack calls it INVALID, so no translation was made for it. Observed where the hooks saw it without an entry in a
namespace that tracks connections; what came of it is said with it."""

from __future__ import annotations

from tracer.model import Evidence
from tracer.syns.causes import _words
from tracer.syns.model import Attempt, Cause
from tracer.syns.spaces import Spaces


def why(attempt: Attempt, spaces: Spaces) -> Cause | None:
    if attempt.syn.untracked != "INVALID":
        return None
    hop = next((h for h in _words.hops(attempt) if h.verdict == "DROP" and h.what in ("table", "chain")), None)
    end = f"DROPped in {_words.table_of(hop)}{_words.whose(hop)}" if hop else attempt.syn.verdict
    return Cause("conntrack INVALID", f"conntrack state INVALID{attempt.where}: {end}", Evidence.DERIVED)
