# SPDX-License-Identifier: Apache-2.0
"""Payload bytes of open packets have a limit in packets and in bytes."""

from __future__ import annotations

import pytest

from tracer.packets import payload_store
from tracer.packets.payload_store import PIECE_BYTES, PayloadStore


def test_bytes_are_counted() -> None:
    store = PayloadStore()
    store.add(1, 0, b"abcd")
    store.add(1, 4, b"ef")
    store.add(1, 0, b"ab")
    assert store.pop(1, {}) == {0: b"ab", 4: b"ef"} and store.octets == 0
    assert store.pop(1, {}) == {}


def test_bytes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(payload_store, "BYTES_KEPT", 10 * (PIECE_BYTES + 100))
    store = PayloadStore()
    for n in range(50):
        store.add(n % 25, 100 * (n // 25), bytes(100))
        assert store.octets <= 10 * (PIECE_BYTES + 100)
    assert (list(store), store.evicted) == ([*range(15, 25)], 40)
    for n in range(100):
        store.add(99, n, b"x")
    assert list(store) == [99], "the last packet stays"


def test_packets_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(payload_store, "PACKETS_KEPT", 3)
    store = PayloadStore()
    for n in range(10):
        store.add(n, 0, b"abcd")
    assert (list(store), store.evicted, store.octets) == ([7, 8, 9], 7, 3 * (PIECE_BYTES + 4))
