# SPDX-License-Identifier: Apache-2.0
"""The exit status of a run."""

from __future__ import annotations

from tracer.model.summary import RunSummary
from tracer.packets.outcome import BAD


def status(summary: RunSummary, with_command: bool) -> int:
    """The exit status of a finished run (docs/exit-status.md). Without a command the status is 0."""
    if not with_command:
        return 0
    if any(f.certain for f in summary.findings) or any(summary.outcomes.get(outcome) for outcome in BAD):
        return 10
    if summary.lost or summary.unexplained or summary.unaddressed:
        return 11
    return 0 if summary.packets else 12
