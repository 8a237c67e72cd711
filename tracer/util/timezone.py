# SPDX-License-Identifier: Apache-2.0
"""The time zone of a run in the form of TZ, so that a replay on another machine shows the same local time."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

_NAME, _OFFSET = r"(?:[A-Za-z]{3,10}|<[A-Za-z0-9+-]{3,10}>)", r"[+-]?\d{1,3}(?::\d\d){0,2}"
_DAY = r"(?:M\d{1,2}\.\d\.\d|J?\d{1,3})"
_RULE = re.compile(rf"{_NAME}{_OFFSET}(?:{_NAME}(?:{_OFFSET})?(?:,{_DAY}(?:/{_OFFSET})?){{0,2}})?", re.ASCII)
"""POSIX's form of TZ. Any other form would be used as the name of a file: ":/dev/zero"."""


def local_zone(zone_file: Path = Path("/etc/localtime")) -> str:
    """The rule at the end of /etc/localtime ("CET-1CEST,M3.5.0,M10.5.0/3"), or the current offset ("<k8s>-2:00")."""
    if not os.environ.get("TZ"):
        try:
            rule = zone_file.read_bytes().rstrip(b"\n").rpartition(b"\n")[2].decode("ascii")
            if _RULE.fullmatch(rule):
                return rule
        except (OSError, ValueError):
            pass
    east = time.localtime().tm_gmtoff
    sign, minutes = "-" if east >= 0 else "+", abs(east) // 60
    return f"<k8s>{sign}{minutes // 60}:{minutes % 60:02d}"


def use(zone: str) -> None:
    """Sets the time zone of this process; an invalid zone is ignored."""
    if _RULE.fullmatch(zone):
        os.environ["TZ"] = zone
        time.tzset()
