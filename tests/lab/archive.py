# SPDX-License-Identifier: Apache-2.0
"""Reads the archives that the lab writes for a guest."""

from __future__ import annotations

from lab import cpio


def members(archive: bytes) -> dict[str, tuple[int, bytes]]:
    """Name -> (mode, data) of a newc archive, up to its trailer."""
    found: dict[str, tuple[int, bytes]] = {}
    at = 0
    while True:
        assert archive[at : at + 6] == b"070701"
        fields = [int(archive[at + 6 + 8 * i : at + 14 + 8 * i], 16) for i in range(13)]
        name = archive[at + 110 : at + 110 + fields[11] - 1].decode()
        data_at = (at + 110 + fields[11] + 3) & ~3
        if name == cpio.TRAILER:
            return found
        found[name] = (fields[1], archive[data_at : data_at + fields[6]])
        at = (data_at + fields[6] + 3) & ~3
