# SPDX-License-Identifier: Apache-2.0
"""The forms in which `text` and `oneline` show the time of a packet."""

from __future__ import annotations

from enum import StrEnum


class TimeForm(StrEnum):
    """The words of --time."""

    LOCAL = "local"
    """14:52:10.294, in the time zone of the traced node"""
    UTC = "utc"
    """13:52:10.294Z"""
    ISO = "iso"
    """2026-11-24T14:52:10.294+01:00, as in RFC 3339"""
    EPOCH = "epoch"
    """1795528330.294118, seconds since 1970, as tcpdump -tt"""
    DELTA = "delta"
    """+0.043118 s since the packet before, as tcpdump -ttt"""
    NONE = "none"
    """no time, as tcpdump -t"""
