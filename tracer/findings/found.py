# SPDX-License-Identifier: Apache-2.0
"""The findings of one run, each cause once: counts the packets that show it, and keeps a certain one certain."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tracer.model.finding import Finding
from tracer.model.packet import Packet
from tracer.util.evictions import evictions
from tracer.util.worker import user_warnings

NUMBERS_KEPT = 10
MOST_FINDINGS = 1000
"""Maximum number of different findings in one run. Further ones are not shown, and a warning says so."""


class FoundFindings:
    """Findings by cause."""

    def __init__(self) -> None:
        self._found: dict[tuple[object, ...], Finding] = {}

    @property
    def all(self) -> list[Finding]:
        """All findings: certain ones first, then in the order in which they were found."""
        return sorted(self._found.values(), key=lambda f: not f.certain)

    def add(
        self, name: str, finding: Finding, packet: Packet, again: Callable[[Finding], None] | None = None
    ) -> Finding | None:
        """Adds what a packet shows. Returns the finding if it has become certain now.

        Args:
            name: Name of the finding's file.
            finding: The finding.
            packet: The packet that shows it.
            again: Called with the finding if it was certain before.
        """
        key = (name, *finding.key)
        if not self._has_room(key):
            return None
        before = self._found.get(key)
        self._found[key] = now = merge(before, replace(finding, name=name), packet)
        if before and before.certain:
            if again:
                again(now)
            return None
        return now if now.certain else None

    def _has_room(self, key: tuple[object, ...]) -> bool:
        if key in self._found or len(self._found) < MOST_FINDINGS:
            return True
        evictions.add("findings")
        user_warnings.add(f"There are more than {MOST_FINDINGS} different findings: further ones are not shown.")
        return False


def merge(before: Finding | None, finding: Finding, packet: Packet) -> Finding:
    """Merges a finding with an earlier one of the same key. A certain finding stays certain."""
    if not before:
        return replace(finding, packets=1, first=packet.time, last=packet.time, numbers=(packet.number,))
    base = before if before.certain and not finding.certain else finding
    numbers = (*before.numbers, packet.number)[:NUMBERS_KEPT]
    first, last = min(before.first, packet.time), max(before.last, packet.time)
    return replace(base, packets=before.packets + 1, first=first, last=last, numbers=numbers)
