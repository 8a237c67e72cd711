# SPDX-License-Identifier: Apache-2.0
"""The packet's mark on one path through a table."""

from __future__ import annotations

from typing import NamedTuple

from tracer.rules.iptables.entry import Extension
from tracer.rules.iptables.matches import KEEPS_MARK, compute, mark_after, mark_after_match
from tracer.rules.packet_view import PacketView


class MarkChange(NamedTuple):
    """The mark, and what is known of it.

    Attributes:
        value: The mark, None = not known.
        assumed: Mark matches with the results assumed since the mark is unknown. If nothing changes it any more, the mark
            after the table must agree with them.
    """

    value: int | None
    assumed: tuple[tuple[Extension, bool], ...] = ()

    def with_answer(self, match: Extension, answer: bool) -> MarkChange:
        """The state after a match with this assumed result."""
        return MarkChange(None, (*self.assumed, (match, answer))) if match.name == "mark" and self.value is None else self

    def after_match(self, match: Extension) -> MarkChange:
        """The state after a match that was true."""
        return self if mark_after_match(match, 0) == 0 else MarkChange(None)

    def after(self, target: Extension) -> MarkChange:
        """The state after a target."""
        if target.name in KEEPS_MARK or (target.name != "MARK" and mark_after(target, 0) == 0):
            return self
        return MarkChange(mark_after(target, self.value))

    def may_be(self, mark: int | None, packet: PacketView) -> bool:
        """Whether the mark may be this one, None = any."""
        if mark is None or self.value is not None:
            return mark is None or mark == self.value
        return all(compute(match, packet, mark) == answer for match, answer in self.assumed)
