# SPDX-License-Identifier: Apache-2.0
"""The exit status of a run."""

from __future__ import annotations

from tracer.model.summary import RunSummary
from tracer.packets.outcome import BAD


def status(totals: RunSummary, with_command: bool) -> int:
    """The exit status of a finished run (docs/exit-status.md). Without a command, ending is all that can be asked."""
    if not with_command:
        return 0
    if any(f.certain for f in totals.findings) or any(totals.outcomes.get(word) for word in BAD):
        return 10
    if totals.lost or totals.unexplained or totals.unaddressed:
        return 11
    return 0 if totals.packets else 12
