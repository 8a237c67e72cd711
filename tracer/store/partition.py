# SPDX-License-Identifier: Apache-2.0
"""Where the rows of a table are: `TABLE/date=YYYY-MM-DD/hour=HH/node=NAME/FILE`.

The hour is UTC, that of the event: of a packet its first hop, of a connection and a finding its last packet.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from urllib.parse import quote, unquote

HOUR_US = 3_600_000_000
_PATH = re.compile(r"(\w+)/date=(\d{4}-\d\d-\d\d)/hour=(\d\d)/node=([^/]+)/([^/]+)")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MOST_HOUR = 2_000_000
"""Hours since the epoch that a path can have: until the year 2198. A later time is a defect of a clock."""


@dataclass(frozen=True, order=True)
class Partition:
    """The rows of one table, hour and node.

    Attributes:
        table: Name of the table.
        hour: Hours since the epoch.
        node: Name of the node.
    """

    table: str
    hour: int
    node: str

    @property
    def directory(self) -> str:
        """The path below the store."""
        at = _EPOCH + timedelta(hours=min(max(self.hour, 0), MOST_HOUR))
        return f"{self.table}/date={at:%Y-%m-%d}/hour={at:%H}/node={quoted(self.node)}"


def quoted(node: str) -> str:
    """The name of a node as a part of a path, as Hive and Spark quote it."""
    return quote(node or "unknown", safe="").replace("~", "%7E")


def parse(path: str) -> tuple[Partition, str] | None:
    """The partition and the file name of a path below the store; None = the path is of something else."""
    found = _PATH.fullmatch(path)
    if not found:
        return None
    table, day, hour, node, name = found.groups()
    try:
        at = datetime.strptime(f"{day} {hour}", "%Y-%m-%d %H").replace(tzinfo=UTC)
    except ValueError:
        return None
    return Partition(table, (at - _EPOCH) // timedelta(hours=1), unquote(node)), name
