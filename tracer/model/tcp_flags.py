# SPDX-License-Identifier: Apache-2.0
"""Conditions on TCP flags: "SYN", "SYN,not-ACK"."""

from __future__ import annotations

from collections.abc import Iterable

from tracer.errors import BadOption

TCP_FLAGS = {"FIN": 1, "SYN": 2, "RST": 4, "PSH": 8, "ACK": 16, "URG": 32}
"""The bit of each flag, in the TCP header's order. The flags of ECN are not named."""
NOT = "NOT-"


def parse_tcp_flags(texts: Iterable[str]) -> frozenset[int]:
    """Parses conditions on TCP flags.

    Args:
        texts: The values of --tcp-flags. One value is a list with commas: every flag in it is set, and every flag with `not-`
            is not set. Several values are alternatives.

    Returns:
        All values of the header's byte of flags, 0 to 255, that meet one of the conditions; empty = there is no condition.

    Raises:
        BadOption: A flag does not exist, or a condition contradicts itself.
    """
    found: set[int] = set()
    for text in texts:
        is_set, is_clear = _bits(text)
        if is_set & is_clear:
            raise BadOption(f"--tcp-flags {text!r} contradicts itself: no packet can match.")
        found |= {value for value in range(256) if value & is_set == is_set and not value & is_clear}
    return frozenset(found)


def _bits(text: str) -> tuple[int, int]:
    """The flags that must be set, and those that must not."""
    is_set = is_clear = 0
    for word in text.upper().split(","):
        name = word.strip()
        bit = TCP_FLAGS.get(name.removeprefix(NOT))
        if not bit:
            names = ", ".join(TCP_FLAGS)
            raise BadOption(f"--tcp-flags {text!r} is no list of TCP flags: choose from {names}, as in SYN,not-ACK.")
        if name.startswith(NOT):
            is_clear |= bit
        else:
            is_set |= bit
    return is_set, is_clear


def flags_value(names: str) -> int:
    """The byte of flags of a packet. names: its flags as in Packet.tcp_flags, "SYN ACK"."""
    return sum(TCP_FLAGS.get(name, 0) for name in names.split())
