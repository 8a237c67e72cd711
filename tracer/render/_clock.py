# SPDX-License-Identifier: Apache-2.0
"""Formats the times of packets, in the form that --time chooses."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import lru_cache

from tracer.model.time_form import TimeForm

_SECOND = 1_000_000_000


class Clock:
    """The times of one output.

    Args:
        form: How they are shown.
        shift: What is added to each time, ns; not 0 for a node whose clock is not that of the reader.

    Attributes:
        shift: As above. It may change.
    """

    def __init__(self, form: TimeForm = TimeForm.LOCAL, shift: int = 0) -> None:
        self._format = _POINTS.get(form)
        self._is_delta = form is TimeForm.DELTA
        self._before, self.shift = 0, shift

    def stamp(self, ns: int) -> str:
        """The time in front of a packet; "" = the form shows none. ns: since the epoch; the next difference is to it."""
        ns += self.shift
        if self._format:
            return self._format(ns)
        if not self._is_delta:
            return ""
        since, self._before = ns - (self._before or ns), ns
        return f"{since / _SECOND:+.6f} s"

    def point(self, ns: int) -> str:
        """A point in time, ns since the epoch, such as that of an earlier packet; "" = the form has no points in time."""
        return self._format(ns + self.shift) if self._format else ""


def local(ns: int) -> str:
    """14:52:10.294, in the time zone of the traced node."""
    return f"{_second(ns // _SECOND)}.{_millisecond(ns)}"


def _utc(ns: int) -> str:
    return f"{time.strftime('%H:%M:%S', time.gmtime(ns // _SECOND))}.{_millisecond(ns)}Z"


def _iso(ns: int) -> str:
    at, zone = _date(ns // _SECOND)
    return f"{at}.{_millisecond(ns)}{zone}"


def _epoch(ns: int) -> str:
    return f"{ns // _SECOND}.{ns % _SECOND // 1000:06d}"


def _millisecond(ns: int) -> str:
    return f"{ns // 1_000_000 % 1000:03d}"


@lru_cache(16)
def _second(epoch: int) -> str:
    return time.strftime("%H:%M:%S", time.localtime(epoch))


@lru_cache(16)
def _date(epoch: int) -> tuple[str, str]:
    """Date and second, and the zone's difference to UTC."""
    at = time.localtime(epoch)
    sign, minutes = "-" if at.tm_gmtoff < 0 else "+", abs(at.tm_gmtoff) // 60
    return time.strftime("%Y-%m-%dT%H:%M:%S", at), f"{sign}{minutes // 60:02d}:{minutes % 60:02d}"


_POINTS: dict[TimeForm, Callable[[int], str]] = {
    TimeForm.LOCAL: local,
    TimeForm.UTC: _utc,
    TimeForm.ISO: _iso,
    TimeForm.EPOCH: _epoch,
}
"""The forms that show points in time."""
