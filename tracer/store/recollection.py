# SPDX-License-Identifier: Apache-2.0
"""Findings and packets of a store with all that belongs to them: the packet's path, and the rules that were in force."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, cast

from tracer.errors import CaptureUnreadable
from tracer.model.packet import Packet
from tracer.protocol.malformed_frame import MalformedFrame
from tracer.protocol.tree_codec import decode, from_bytes
from tracer.store import arrow_dataset
from tracer.store.bucket import Bucket
from tracer.store.partition import HOUR_US
from tracer.store.selected_files import StoreSelection, select
from tracer.util.optional import require_optional

Row = dict[str, Any]


@dataclass(frozen=True)
class StoredRules:
    """The rules of one table that were in force.

    Attributes:
        ruleset: Their digest.
        netns: Their network namespace.
        family: Family of the table.
        table: The table.
        generation: Their generation.
        rules: Number of rules.
        text: The rules, a line each.
    """

    ruleset: str
    netns: str
    family: str
    table: str
    generation: str
    rules: int
    text: str


@dataclass(frozen=True)
class StoredPacket:
    """A packet of a store.

    Attributes:
        node: Its node.
        run: Its run.
        packet: The packet, with all hops.
        rules: The rules in force of the tables that acted on it.
        hits: Rows of `rule_hits`.
    """

    node: str
    run: str
    packet: Packet
    rules: tuple[StoredRules, ...]
    hits: tuple[Row, ...]


def findings(bucket: Bucket, selection: StoreSelection, name: str = "") -> list[Row]:
    """The findings of a store in the order of their times. name: of the finding; "" = all.

    Raises:
        StoreUnreachable: The storage does not answer.
    """
    rows = [row for row in _rows(bucket, selection, "findings", {}) if _is_selected(row, selection)]
    return sorted((row for row in rows if not name or row["finding"] == name), key=lambda row: (row["event_at"], row["node"]))


def packet_of(bucket: Bucket, finding: Row) -> StoredPacket | None:
    """The packet of a finding; None = it was found without traffic, or the store does not have the packet."""
    if finding["packet"] is None or not finding["first_ns"]:
        return None
    return packet(bucket, finding["node"], finding["run"], finding["packet"], finding["first_ns"] // 1000)


def packet(bucket: Bucket, node: str, run: str, number: int, at: int) -> StoredPacket | None:
    """A packet by its key.

    Args:
        bucket: The store.
        node: Name of the node.
        run: Name of the run.
        number: Number of the packet.
        at: A time in its hour, us since the epoch.

    Returns:
        The packet; None = it is not there.

    Raises:
        StoreUnreachable: The storage does not answer.
        CaptureUnreadable: What is stored of it cannot be read.
    """
    hour = at // HOUR_US
    place = StoreSelection(hour * HOUR_US, (hour + 1) * HOUR_US, (node,))
    key: dict[str, str | int] = {"run": run, "packet": number}
    found = next(_rows(bucket, place, "packets", key), None)
    if found is None or not found["explained"]:
        return None
    try:
        explained = cast(Packet, decode(from_bytes(found["explained"].encode()), Packet))
    except MalformedFrame as e:
        raise CaptureUnreadable(f"Packet {number} of run {run} cannot be read: {e}.") from e
    hits = sorted(_rows(bucket, place, "rule_hits", key), key=lambda row: (row["hop"], row["hit"]))
    digests = list(dict.fromkeys(row["ruleset"] for row in hits if row["ruleset"]))
    rules: dict[str, StoredRules] = {}
    for digest in digests:
        row = next(_rows(bucket, place, "rulesets", {"ruleset": digest}), None)
        if row is not None:
            rules[digest] = StoredRules(
                digest, row["netns"], row["nf_family"], row["nf_table"], row["generation"], row["rules"], row["rule_text"]
            )
    return StoredPacket(node, run, explained, tuple(rules.values()), tuple(hits))


def time_of(bucket: Bucket, selection: StoreSelection, run: str, number: int) -> int:
    """Time of a packet, us since the epoch; 0 = it is not there."""
    found = next(_rows(bucket, selection, "packets", {"run": run, "packet": number}, ("event_at",)), None)
    return _us(found["event_at"]) if found else 0


def _rows(
    bucket: Bucket, selection: StoreSelection, table: str, equal: dict[str, str | int], columns: Sequence[str] | None = None
) -> Iterator[Row]:
    """Yields the rows of a table with these values. columns: those that are wanted; None = all."""
    compute: Any = require_optional("pyarrow.compute", "a store")
    files = select(bucket, selection, (table,))
    if not files.tables[table]:
        return
    condition = None
    for name, value in equal.items():
        one = compute.field(name) == value
        condition = one if condition is None else condition & one
    yield from (
        arrow_dataset.make(bucket, files, table)
        .to_table(columns=list(columns) if columns else None, filter=condition)
        .to_pylist()
    )


def _is_selected(row: Row, selection: StoreSelection) -> bool:
    at = _us(row["event_at"])
    return (not selection.since or at >= selection.since) and (not selection.until or at < selection.until)


def _us(at: datetime) -> int:
    return (at - datetime(1970, 1, 1)) // timedelta(microseconds=1)
