# SPDX-License-Identifier: Apache-2.0
"""The packet's mark on one way through a table."""

from __future__ import annotations

from typing import NamedTuple

from tracer.rules.iptables.entry import Ext
from tracer.rules.iptables.matches import KEEPS_MARK, compute, mark_after, mark_after_match
from tracer.rules.packet_view import Seen


class Mark(NamedTuple):
    """value: None = not known. asked: what matches are taken to have answered since it is not known: if nothing changes it any
    more, it is the mark behind the table."""

    value: int | None
    asked: tuple[tuple[Ext, bool], ...] = ()

    def answered(self, match: Ext, answer: bool) -> Mark:
        return Mark(None, (*self.asked, (match, answer))) if match.name == "mark" and self.value is None else self

    def after_match(self, match: Ext) -> Mark:
        return self if mark_after_match(match, 0) == 0 else Mark(None)

    def after(self, target: Ext) -> Mark:
        if target.name in KEEPS_MARK or (target.name != "MARK" and mark_after(target, 0) == 0):
            return self
        return Mark(mark_after(target, self.value))

    def may_be(self, mark: int | None, packet: Seen) -> bool:
        """Whether it may be this one, None = any."""
        if mark is None or self.value is not None:
            return mark is None or mark == self.value
        return all(compute(match, packet, mark) == answer for match, answer in self.asked)
