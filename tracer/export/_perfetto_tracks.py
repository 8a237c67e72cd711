# SPDX-License-Identifier: Apache-2.0
"""The tracks of a Perfetto trace: one for each namespace, below it at least one for each interface.

https://perfetto.dev/docs/reference/synthetic-track-event: slices of one track may only be nested, so packets that overlap at an
interface get further tracks with the same name, which the UI draws as one.
"""

from __future__ import annotations

from collections.abc import Callable

from tracer.util.evictions import evictions

MOST_TRACKS, MOST_OVERLAPPING = 16_384, 256
"""Maximum number of tracks, and of those of one interface. A slice without a track becomes an instant at its end."""


class TrackTable:
    """The tracks of a trace, numbered from 1.

    Args:
        write: Writes the descriptor of a track: its number, its name, and its parent or 0.
    """

    def __init__(self, write: Callable[[int, str, int], None]) -> None:
        self._write = write
        self._made = 0
        self._namespaces: dict[str, int] = {}
        self._used: dict[tuple[str, str], dict[int, tuple[int, int]]] = {}

    def namespace(self, netns: str) -> int:
        """The track of a namespace."""
        if netns not in self._namespaces:
            if self._made >= MOST_TRACKS:
                return 1
            self._namespaces[netns] = self._make(netns, 0)
        return self._namespaces[netns]

    def free(self, netns: str, iface: str, begin: int, end: int) -> int | None:
        """A track of an interface without a slice between `begin` and `end`, ns. None = there are too many tracks."""
        tracks = self._used.get((netns, iface), {})
        for number, (first, last) in tracks.items():
            if end <= first or last <= begin:
                tracks[number] = min(first, begin), max(last, end)
                return number
        if len(tracks) >= MOST_OVERLAPPING or self._made >= MOST_TRACKS:
            evictions.add("tracks of a trace")
            return None
        number = self._make(iface, self.namespace(netns))
        self._used.setdefault((netns, iface), {})[number] = begin, end
        return number

    def first(self, netns: str, iface: str, time: int) -> int:
        """The first track of an interface, for an instant, which may lie within a slice. If it has none: the namespace's."""
        tracks = self._used.get((netns, iface))
        if tracks:
            return next(iter(tracks))
        number = None if self._made >= MOST_TRACKS else self.free(netns, iface, time, time)
        return self.namespace(netns) if number is None else number

    def _make(self, name: str, parent: int) -> int:
        self._made += 1
        self._write(self._made, name, parent)
        return self._made
