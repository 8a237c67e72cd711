# SPDX-License-Identifier: Apache-2.0
"""The command `k8snet-trace audit`: reads the node's state, runs the checks, prints the findings."""

from __future__ import annotations

from collections.abc import Sequence

from tracer import render
from tracer.audit import audit, checks, limits
from tracer.audit.state import NodeState
from tracer.findings.context import FindingContext
from tracer.kube.owner_resolver import ObjectSource, OwnerResolver
from tracer.kube.selectors import Selectors
from tracer.model.filter import Filter
from tracer.model.finding import Finding
from tracer.node.capabilities import require_root
from tracer.node.nfnetlink import nft_loaded
from tracer.rules import inventory


def run(form: str, source: ObjectSource) -> int:
    """Audits this node; returns the exit status. Raises TraceError."""
    with OwnerResolver(source, Selectors(), Filter()) as kube:
        require_root()
        output = render.find(form)()
        kube.settle()
        for note in kube.notes():
            output.note(note)
        rules = inventory.read(nft_loaded())
        for note in rules.notes:
            output.note(note)
        state = NodeState(FindingContext(kube.cluster), rules)
        found = audit(state)
        unread = (*rules.unread, *state.uncomputed)
        code = status(found, unread)
        output.audit(found, [name for name, _ in checks()], unread, code, limits(state))
    return code


def status(found: Sequence[Finding], unread: Sequence[str]) -> int:
    """The exit status (docs/exit-status.md). A certain finding has precedence over unread rules."""
    if any(f.certain for f in found):
        return 10
    return 11 if unread else 0
