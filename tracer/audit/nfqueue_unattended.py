# SPDX-License-Identifier: Apache-2.0
"""A rule hands packets to a queue (NFQUEUE, without bypass) to which no process is bound: the kernel drops them."""

from __future__ import annotations

from collections.abc import Iterator

from tracer.audit import _needs
from tracer.audit.state import NodeState
from tracer.findings.nfqueue_unattended import conflict, range_of
from tracer.model.finding import Finding

NEEDS = (_needs.packet_queues,)


def check(state: NodeState) -> Iterator[Finding]:
    for rule, ruleset in state.rules():
        queues = range_of(rule)
        if queues is not None:
            owner = state.owner(rule, ruleset)
            found = conflict(rule, queues, owner, [state.proof(rule, ruleset, owner.text)], state.context)
            if found:
                yield found
