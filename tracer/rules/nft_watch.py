"""Keeps the nftables snapshots of the namespaces that packets are seen in, read in a thread of its own, once a generation.

The generation is asked for ten times a second, one small message each. The kernel can announce changes too (NFNLGRP_NFTABLES),
but then it builds a message for every rule of every change, on the node's time; and what a hit needs is its own generation's
number, which it carries.
"""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from contextlib import suppress

from tracer.rules import netns, nft, nft_dump
from tracer.rules.nfnetlink import Nfnetlink
from tracer.rules.nft import Changing, Snapshot

PAUSE_SECONDS = 0.1
KEPT = 16
"""Snapshots a namespace."""


class _Namespace:
    """One namespace that is watched. gone: nothing leads to it, or its rules cannot be read."""

    def __init__(self, inode: int) -> None:
        self.inode, self.gone = inode, False
        self.snapshots: OrderedDict[int, Snapshot] = OrderedDict()
        self.seen = 0
        self.next_read = 0.0
        self._fd = -1
        self._socket: Nfnetlink | None = None

    def open(self) -> None:
        self._fd = netns.open_inode(self.inode)
        self._socket = netns.inside(self._fd, Nfnetlink)

    def look(self) -> None:
        """Reads the rules if they have changed. After a reading that took long there is a pause as long."""
        if self._socket is None:
            self.open()
        assert self._socket is not None
        now = nft_dump.generation(self._socket)
        if now in self.snapshots or time.monotonic() < self.next_read:
            self.seen = now
            return
        began = time.monotonic()
        with suppress(Changing):
            snapshot = nft.read(self._fd, self.inode)
            self.snapshots[snapshot.number] = snapshot
            now = snapshot.number
        self.next_read = 2 * time.monotonic() - began
        self.seen = now
        while len(self.snapshots) > KEPT:
            self.snapshots.popitem(last=False)

    def close(self) -> None:
        if self._socket:
            self._socket.close()
        if self._fd >= 0:
            os.close(self._fd)
        self._socket, self._fd = None, -1


class NftWatch:
    """Snapshots by namespace and generation; a context manager that ends its thread.

    Only for kernels that have nf_tables loaded: asking another one would load it.
    """

    def __init__(self, pause: float = PAUSE_SECONDS) -> None:
        self._pause = pause
        self._namespaces: dict[int, _Namespace] = {}
        self._lock = threading.Lock()
        self._wake, self._ended = threading.Event(), False
        self._thread = threading.Thread(target=self._run, name="nft rules", daemon=True)
        self._thread.start()

    def want(self, inode: int, seconds: float = 0) -> None:
        """Watches a namespace from now on. seconds: how long to wait for its first snapshot."""
        space = self._space(inode)
        until = time.monotonic() + seconds
        while not space.snapshots and not space.gone and time.monotonic() < until:
            time.sleep(0.01)

    def _space(self, inode: int) -> _Namespace:
        with self._lock:
            if inode not in self._namespaces:
                self._namespaces[inode] = _Namespace(inode)
                self._wake.set()
            return self._namespaces[inode]

    def find(self, inode: int, generation: int) -> Snapshot | None:
        """The snapshot of that generation; None when there is none (yet)."""
        return self._space(inode).snapshots.get(generation)

    def near(self, inode: int) -> list[Snapshot]:
        """All snapshots of a namespace, the newest first."""
        space = self._space(inode)
        with self._lock:
            return list(reversed(space.snapshots.values()))

    def coming(self, inode: int, generation: int) -> bool:
        """Whether that generation may still be read: it is in force, or nobody has looked since it came."""
        space = self._space(inode)
        return not space.gone and generation not in space.snapshots and (space.seen <= generation)

    def _run(self) -> None:
        while not self._ended:
            with self._lock:
                spaces = [s for s in self._namespaces.values() if not s.gone]
            for space in spaces:
                try:
                    space.look()
                except (OSError, LookupError):
                    space.gone = True
                    space.close()
            self._wake.wait(self._pause)
            self._wake.clear()
        for space in self._namespaces.values():
            space.close()

    def close(self) -> None:
        self._ended = True
        self._wake.set()
        self._thread.join()

    def __enter__(self) -> NftWatch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
