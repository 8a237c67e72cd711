# SPDX-License-Identifier: Apache-2.0
"""The conntrack table is full or nearly full."""

from __future__ import annotations

from collections.abc import Iterator

from tracer.audit import _needs
from tracer.audit.state import NodeState
from tracer.findings.conntrack_full import FULL_SHARE, full, make_finding
from tracer.model.finding import Finding

NEEDS = (_needs.conntrack,)


def check(state: NodeState) -> Iterator[Finding]:
    count, most = full(state.context)
    if most and count >= FULL_SHARE * most:
        yield make_finding(count, most, state.context, [])
