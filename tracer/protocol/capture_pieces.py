# SPDX-License-Identifier: Apache-2.0
"""Transactions of a capture as pieces of bytes, and back: a record can be larger than a frame.

The first byte of a piece is 1 for the last piece of a transaction, else 0. A transaction is a line of JSON, then the bytes of
its columns one after the other: {"meta": {...}, "records": [[batch, kind, key, length] ...], "batch": [number, began, ended,
events, length, length]}; meta and batch may be null.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tracer.protocol.malformed_frame import MalformedFrame

PIECE_BYTES = 1 << 18
"""Largest piece without its first byte, bytes."""
MOST_TRANSACTION_BYTES = 64 << 20
"""Largest transaction, bytes."""
MOST_NUMBER = 1 << 63
"""The integers of a capture are smaller than this."""


@dataclass(frozen=True)
class CaptureTransaction:
    """What is written to a capture at once.

    Attributes:
        meta: Values that do not change in the run; None = this is no beginning.
        records: Rows of the table `records`.
        batch: A row of the table `batches`; None = there is none.
    """

    meta: dict[str, Any] | None = None
    records: Sequence[tuple[int, str, str, bytes]] = ()
    batch: tuple[int, int, int, int, bytes, bytes] | None = None


def pieces(transaction: CaptureTransaction) -> Iterator[bytes]:
    """Yields the pieces of a transaction. Raises ValueError for one that is too large."""
    batch = transaction.batch
    head = {
        "meta": transaction.meta,
        "records": [[turn, str(kind), key, len(body)] for turn, kind, key, body in transaction.records],
        "batch": [*batch[:4], len(batch[4]), len(batch[5])] if batch else None,
    }
    blobs = [body for *_, body in transaction.records] + (list(batch[4:]) if batch else [])
    whole = b"".join([json.dumps(head, separators=(",", ":")).encode(), b"\n", *map(bytes, blobs)])
    if len(whole) > MOST_TRANSACTION_BYTES:
        raise ValueError(f"a part of the capture has {len(whole) >> 20} MB")
    for at in range(0, len(whole), PIECE_BYTES):
        is_last = at + PIECE_BYTES >= len(whole)
        yield bytes([is_last]) + whole[at : at + PIECE_BYTES]


class CapturePieces:
    """Puts pieces together. Raises MalformedFrame."""

    def __init__(self) -> None:
        self._parts = bytearray()

    def feed(self, piece: bytes) -> CaptureTransaction | None:
        """The transaction that this piece completes; None = more pieces follow."""
        if not piece or len(self._parts) + len(piece) > MOST_TRANSACTION_BYTES + 1:
            raise MalformedFrame("a part of the capture is too large, or empty")
        self._parts += piece[1:]
        if not piece[0]:
            return None
        whole, self._parts = bytes(self._parts), bytearray()
        return _parse(whole)


def _parse(whole: bytes) -> CaptureTransaction:
    line, _, blobs = whole.partition(b"\n")
    try:
        head = json.loads(line)
        at = 0
        records: list[tuple[int, str, str, bytes]] = []
        for turn, kind, key, length in head["records"]:
            _check((turn, int), (kind, str), (key, str), (length, int))
            records.append((turn, kind, key, blobs[at : at + length]))
            at += length
        batch = None
        if head["batch"] is not None:
            turn, began, ended, events, first, second = head["batch"]
            _check(*((each, int) for each in head["batch"]))
            batch = turn, began, ended, events, blobs[at : at + first], blobs[at + first : at + first + second]
            at += first + second
        if at != len(blobs) or not isinstance(head["meta"], dict | None):
            raise MalformedFrame("a part of the capture has another length")
    except (ValueError, TypeError, KeyError, RecursionError) as e:
        raise MalformedFrame("a part of the capture cannot be read") from e
    return CaptureTransaction(head["meta"], records, batch)


def _check(*values: tuple[object, type]) -> None:
    for value, kind in values:
        if type(value) is not kind or (isinstance(value, int) and not 0 <= value < MOST_NUMBER):
            raise TypeError(value)
