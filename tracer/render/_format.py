# SPDX-License-Identifier: Apache-2.0
"""Formats that all text output shares: counts, differences of times, styles of outcomes."""

from __future__ import annotations

from tracer.model.handshake import HandshakeVerdict
from tracer.model.packet import Outcome
from tracer.packets.outcome import BAD
from tracer.util.duration_format import format_duration

GOOD = frozenset({Outcome.FORWARDED, Outcome.DELIVERED, Outcome.SENT})


def outcome_style(outcome: str) -> str:
    """Returns the style of an outcome."""
    return "good" if outcome in GOOD else "bad" if outcome in BAD else "doubt"


def cause_style(verdict: HandshakeVerdict) -> str:
    """Returns the style of a SYN's cause: never red for a packet that ended well here, such as one that got no answer."""
    if verdict.cause.good:
        return "good"
    return "bad" if not verdict.attempt or verdict.attempt.syn.outcome in BAD else "doubt"


def count(n: int, noun: str) -> str:
    """Formats a number and its noun: `3 packets`, `1 packet`."""
    return f"{n} {noun}{'s' * (n != 1)}"


def relative(ns: int) -> str:
    """Formats a time difference in ns: `+0.50 ms`, `+1.20 s`."""
    return f"+{format_duration(ns)}"
