# SPDX-License-Identifier: Apache-2.0
"""The cause is not known: events were lost, or the SYN went where this run does not look. The text has only what was seen."""

from __future__ import annotations

from tracer.handshakes._cause_helpers import LIMITED, formatted_loss
from tracer.model.evidence import Evidence
from tracer.model.handshake import Cause, ConnectionAttempt
from tracer.node.namespace_questions import NamespaceInspector


def classify(attempt: ConnectionAttempt, inspector: NamespaceInspector) -> Cause | None:
    if not attempt.syn.complete:
        return Cause("not known", f"not known, a part of its way was lost: {attempt.syn.verdict}", Evidence.DERIVED)
    if attempt.limited:
        return Cause("not known", f"not known, its answer was not awaited: {LIMITED}: {attempt.syn.verdict}", Evidence.DERIVED)
    if attempt.doubtful:
        lost = f"packets were {formatted_loss(attempt)} while its answer was awaited"
        return Cause("not known", f"not known, {lost}: {attempt.syn.verdict}", Evidence.DERIVED)
    if attempt.one_sided:
        filtered = "the filter may leave out its answer"
        return Cause("not known", f"not known, {filtered}: {attempt.syn.verdict}", Evidence.DERIVED)
    return Cause("not known", f"not known: {attempt.syn.verdict}", Evidence.DERIVED)
