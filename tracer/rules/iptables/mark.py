# SPDX-License-Identifier: Apache-2.0
"""The packet's mark on one way through a table."""

from __future__ import annotations

from typing import NamedTuple

from tracer.rules.iptables.entry import Extension
from tracer.rules.iptables.matches import KEEPS_MARK, compute, mark_after, mark_after_match
from tracer.rules.packet_view import PacketView


class MarkChange(NamedTuple):
    """value: None = not known. asked: what matches are taken to have answered since it is not known: if nothing changes it any
    more, it is the mark behind the table."""

    value: int | None
    asked: tuple[tuple[Extension, bool], ...] = ()

    def answered(self, match: Extension, answer: bool) -> MarkChange:
        return MarkChange(None, (*self.asked, (match, answer))) if match.name == "mark" and self.value is None else self

    def after_match(self, match: Extension) -> MarkChange:
        return self if mark_after_match(match, 0) == 0 else MarkChange(None)

    def after(self, target: Extension) -> MarkChange:
        if target.name in KEEPS_MARK or (target.name != "MARK" and mark_after(target, 0) == 0):
            return self
        return MarkChange(mark_after(target, self.value))

    def may_be(self, mark: int | None, packet: PacketView) -> bool:
        """Whether it may be this one, None = any."""
        if mark is None or self.value is not None:
            return mark is None or mark == self.value
        return all(compute(match, packet, mark) == answer for match, answer in self.asked)
