# SPDX-License-Identifier: Apache-2.0
"""Keeps the nftables snapshots of the namespaces that packets are seen in, read in a thread of its own, once a generation.

The namespace that a run begins with is asked for its generation ten times a second, one small message each, so that its rules
are known before packets meet them. Others are read when a hit names a generation that is not known yet. The kernel can announce
changes too (NFNLGRP_NFTABLES), but then it builds a message for every rule of every change, on the node's time.

No descriptor of a namespace is kept: it would keep the namespace of a pod that is gone.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tracer.node import netns
from tracer.node.nfnetlink import TooManyMessages
from tracer.rules.nftables import snapshot as nftables_snapshot
from tracer.rules.nftables.namespace_snapshots import NamespaceTable, SnapshotHistory
from tracer.rules.nftables.snapshot import RulesetChanging, Snapshot
from tracer.util.worker import Worker, user_warnings

PAUSE_SECONDS = 0.1
END_SECONDS = 1.0
"""How long the end of a run waits for a reading under way; the thread dies with the process."""
CHANGES_KEPT = 4096
"""Changes that wait to be taken. A run takes them many times a second."""
INODE = 0xFFFFFFFF
"""Of netns.identity: the inode."""
AGAIN_SECONDS = 10.0
"""Pause before a namespace is looked at again when reading it failed in a way that is not foreseen."""


@dataclass(frozen=True)
class RulesetUpdate:
    """What a look at a namespace has shown. inode: what names it, with its cookie (netns.identity). seen: the
    generation in force. gone: nothing can be read there any more.

    snapshot: the rules of that generation; None when they could not be read.
    """

    inode: int
    seen: int
    gone: bool = False
    snapshot: Snapshot | None = None


class _Namespace:
    """One namespace. polled: looked at also when nobody asks. seen: the generation in force when it was last looked at.
    asked: the latest generation that a hit named. gone: nothing leads to it, or its rules cannot be read."""

    def __init__(self, space: int) -> None:
        self.space, self.gone, self.polled = space, False, False
        self.snapshots = SnapshotHistory()
        self.seen = self.asked = 0
        self._path: Path | None = None
        self._too_many: TooManyMessages | None = None
        self._next_read = self._again = 0.0

    @property
    def stays(self) -> bool:
        return self.polled

    def is_coming(self, generation: int) -> bool:
        """Whether that generation may still be read: nobody has seen a later one in force."""
        return not self.gone and generation not in self.snapshots and generation >= self.seen

    def fail(self, pause: float) -> None:
        """Its rules could not be read, and will be tried again after so many seconds."""
        self.gone, self._again = True, time.monotonic() + pause

    @property
    def due(self) -> bool:
        if self._again and time.monotonic() >= self._again:
            return True
        return not self.gone and (self.polled or (self.asked > 0 and self.is_coming(self.asked)))

    def look(self) -> None:
        """Reads the rules if they have changed. After a reading that took long there is a pause as long.

        Raises OSError, LookupError.
        """
        if time.monotonic() < self._next_read:
            return
        self._again = 0.0
        fd = self._open()
        try:
            began = time.monotonic()
            with suppress(RulesetChanging):
                self.seen, snapshot = self._read_new(fd)
                if snapshot:
                    self.snapshots.add(snapshot)
                    self._next_read = 2 * time.monotonic() - began
        finally:
            os.close(fd)

    def _read_new(self, fd: int) -> tuple[int, Snapshot | None]:
        """As nft.read_new. Rules that were too many are not read again while they are of the same generation."""
        before = self._too_many
        try:
            found = nftables_snapshot.read_new(
                fd, self.space, {*self.snapshots, before.generation} if before else self.snapshots
            )
        except TooManyMessages as e:
            self._too_many = e if e.generation else None
            raise
        if before and found[0] == before.generation:
            raise before.with_traceback(None)
        self._too_many = None
        return found

    def _open(self) -> int:
        """A descriptor, by the way that led there last time if it still does."""
        inode = self.space & INODE
        if self._path:
            with suppress(OSError, LookupError):
                return netns.open_path(self._path, inode)
        self._path = netns.find(inode)
        return netns.open_path(self._path, inode)


class RulesetWatcher:
    """Snapshots by namespace (netns.identity) and generation; a context manager that ends its thread.

    Only for kernels that have nf_tables loaded: asking another one would load it. dropped: so many changes were not taken in
    time.
    """

    def __init__(self, pause: float = PAUSE_SECONDS) -> None:
        self._pause = pause
        self._namespaces = NamespaceTable(_Namespace)
        self.dropped = 0
        self._lock = threading.Lock()
        self._wake, self._ended = threading.Event(), False
        self._changes: deque[RulesetUpdate] = deque()
        self._thread = Worker("nft rules", self._work).start()

    def poll(self, space: int, seconds: float = 0) -> None:
        """Looks at a namespace again and again from now on. seconds: how long to wait for its first snapshot."""
        found = self._space(space)
        found.polled = True
        self._wake.set()
        until = time.monotonic() + seconds
        while not found.snapshots and not found.gone and time.monotonic() < until:
            time.sleep(0.01)

    def _space(self, space: int) -> _Namespace:
        """One that made room for others is read again."""
        with self._lock:
            return self._namespaces[space]

    def find(self, space: int, generation: int) -> Snapshot | None:
        """The snapshot of that generation; None when there is none (yet)."""
        return self._space(space).snapshots.get(generation)

    def near(self, space: int) -> list[Snapshot]:
        """All snapshots of a namespace, the newest first."""
        return list(self._space(space).snapshots.values())[::-1]

    def is_coming(self, space: int, generation: int) -> bool:
        """Whether that generation is not there yet, but may still be read; if so, it will be tried.

        Whoever asks for one that is there has forgotten it, and is told again.
        """
        found = self._space(space)
        known = found.snapshots.get(generation)
        if known and not any(change.inode == space for change in list(self._changes)):
            self._tell(RulesetUpdate(space, found.seen, found.gone, known))
        if not found.is_coming(generation):
            return False
        found.asked = max(found.asked, generation)
        self._wake.set()
        return True

    def changes(self) -> list[RulesetUpdate]:
        """What has become known since the last call."""
        found = []
        while self._changes:
            found.append(self._changes.popleft())
        return found

    def _work(self) -> bool:
        with self._lock:
            due = [space for space in self._namespaces if space.due]
        for space in due:
            self._look(space)
        self._wake.wait(self._pause)
        if self._wake.is_set():
            self._wake.clear()
            time.sleep(0.01)
        return not self._ended

    def _look(self, space: _Namespace) -> None:
        before = space.seen, bool(space.snapshots), space.gone
        try:
            space.look()
            space.gone = False
        except TooManyMessages as e:
            user_warnings.add(
                f"The nftables rules of network namespace {space.space & INODE} are not read, so its packets show none: {e}.",
                ("too many", space.space),
            )
            space.fail(AGAIN_SECONDS)
        except (OSError, LookupError):
            space.gone = True
        except Exception as e:
            # Nobody waits for these rules meanwhile; other namespaces are read as before.
            user_warnings.add_failure(f"reading the nftables rules of network namespace {space.space & INODE}", e)
            space.fail(AGAIN_SECONDS)
        if space.gone or (space.seen, bool(space.snapshots), space.gone) != before:
            self._tell(RulesetUpdate(space.space, space.seen, space.gone, space.snapshots.get(space.seen)))

    def _tell(self, change: RulesetUpdate) -> None:
        self._changes.append(change)
        if len(self._changes) > CHANGES_KEPT:
            self._changes.popleft()
            self.dropped += 1

    def close(self) -> None:
        self._ended = True
        self._wake.set()
        self._thread.join(END_SECONDS)

    def __enter__(self) -> RulesetWatcher:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
