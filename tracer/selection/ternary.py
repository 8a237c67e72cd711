# SPDX-License-Identifier: Apache-2.0
"""Numbers of 32 bits of which some bits are open: not recorded, or different in each packet."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

MASK = 0xFFFF_FFFF


class Unrecorded(Exception):
    """A decision depends on bits of the packet that were not recorded."""


class Ternary(NamedTuple):
    """A number.

    Attributes:
        value: The known bits; open bits are 0.
        open: Bits that are not known.
        unrecorded: Those of them that were not recorded; the others are recorded and differ in each packet.
    """

    value: int
    open: int = 0
    unrecorded: int = 0

    def bitwise_and(self, other: Ternary) -> Ternary:
        may_be_set = (self.value | self.open) & (other.value | other.open)
        value = self.value & other.value
        return Ternary(value, may_be_set & ~value, (self.unrecorded | other.unrecorded) & may_be_set & ~value)

    def bitwise_or(self, other: Ternary) -> Ternary:
        value = self.value | other.value
        return Ternary(value, (self.open | other.open) & ~value, (self.unrecorded | other.unrecorded) & ~value)

    def shifted(self, bits: int) -> Ternary:
        """Shifted to the left; to the right if bits is negative. 32 and more bits leave nothing, as in the kernel."""
        if abs(bits) >= 32:
            return Ternary(0)
        return Ternary(*((each << bits & MASK) if bits >= 0 else each >> -bits for each in self))

    def calculated(self, other: Ternary, function: Callable[[int, int], int]) -> Ternary:
        """Any other operation: an open bit in an operand leaves all bits of the result open."""
        if self.open or other.open:
            return Ternary(0, MASK, MASK if self.unrecorded or other.unrecorded else 0)
        return Ternary(function(self.value, other.value) & MASK)

    def has_bits(self, other: Ternary) -> frozenset[bool]:
        """The possible answers to: is a bit set in both? Raises Unrecorded."""
        both = self.bitwise_and(other)
        return _answers({True} if both.value else {True, False} if both.open else {False}, both.unrecorded)

    def equals(self, other: Ternary) -> frozenset[bool]:
        """The possible answers. Raises Unrecorded."""
        is_open = self.open | other.open
        differs = (self.value ^ other.value) & ~is_open
        unrecorded = self.unrecorded | other.unrecorded
        return _answers({False} if differs else {True, False} if is_open else {True}, unrecorded)

    def is_at_least(self, other: Ternary) -> frozenset[bool]:
        """The possible answers to self >= other. Raises Unrecorded."""
        least, most = self.value >= (other.value | other.open), (self.value | self.open) >= other.value
        return _answers({True} if least else {True, False} if most else {False}, self.unrecorded | other.unrecorded)


def _answers(possible: set[bool], unrecorded: int) -> frozenset[bool]:
    if len(possible) == 2 and unrecorded:
        raise Unrecorded
    return frozenset(possible)
