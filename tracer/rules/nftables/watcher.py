# SPDX-License-Identifier: Apache-2.0
"""Reads the nftables snapshots of the namespaces with traced packets, in a thread of its own, once per generation.

The namespace that a run begins with is polled for its generation ten times a second, one small message each, so that its rules
are known before packets meet them. Other namespaces are read when a hit names an unknown generation. The kernel can also
announce changes (NFNLGRP_NFTABLES), but then it builds a message for every rule of every change, which costs CPU time of the
node.

No descriptor of a namespace is kept: it would keep the namespace of a removed pod alive.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Set
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tracer.node import netns
from tracer.node.nfnetlink import TooManyMessages
from tracer.rules.nftables import snapshot as nftables_snapshot
from tracer.rules.nftables.namespace_snapshots import OBJECTS_KEPT, NamespaceTable, SnapshotHistory
from tracer.rules.nftables.own_generation import OwnGeneration
from tracer.rules.nftables.snapshot import RulesetChanging, Snapshot
from tracer.rules.unprinted_rules import print_again_at
from tracer.util.bounded_queue import BoundedQueue
from tracer.util.reading_progress import rules_read
from tracer.util.worker import Worker, user_warnings

_log = logging.getLogger(__name__)

PAUSE_SECONDS = 0.1
"""Interval of polling, s."""
END_SECONDS = 1.0
"""Longest wait at the end of a run for a snapshot being read, s; the thread ends with the process."""
CHANGES_KEPT = 4096
"""Most updates that wait to be taken. A run takes them many times a second."""
RETRY_SECONDS = 10.0
"""Pause before a namespace is read again after an unexpected error, s."""


@dataclass(frozen=True)
class RulesetUpdate:
    """The result of reading a namespace.

    Attributes:
        inode: The namespace as netns.identity: inode and cookie.
        seen: The generation in force.
        gone: Whether nothing can be read there any more.
        snapshot: The rules of that generation, None = they could not be read.
    """

    inode: int
    seen: int
    gone: bool = False
    snapshot: Snapshot | None = None


class _Namespace:
    """One namespace.

    Attributes:
        is_polled: Whether it is polled without a request.
        seen: The generation in force when it was last read.
        requested: The latest generation requested because of a hit.
        gone: Whether no path leads to it, or its rules cannot be read.
    """

    def __init__(self, space: int) -> None:
        self.space, self.gone, self.is_polled = space, False, False
        self.snapshots = SnapshotHistory()
        self.seen = self.requested = 0
        self._path: Path | None = None
        self._too_many: TooManyMessages | None = None
        self._next_read = self._retry_at = self._print_at = 0.0

    @property
    def stays(self) -> bool:
        return self.is_polled

    def is_coming(self, generation: int) -> bool:
        """Whether that generation may still be read: no later one was seen in force."""
        return not self.gone and generation not in self.snapshots and generation >= self.seen

    def has_current(self, generation: int) -> bool:
        """Whether nothing has to be read. generation: the one in force; 0 = not known."""
        return generation > 0 and generation == self.seen and generation in self._known and not self.gone

    @property
    def _known(self) -> Set[int]:
        """The generations that are not read again."""
        prints = self._prints
        return {number for number, known in self.snapshots.items() if not (known.is_unprinted and prints)}

    @property
    def _prints(self) -> bool:
        """Whether the tools print the rules now."""
        return time.monotonic() >= self._print_at

    def fail(self, pause: float) -> None:
        """Marks the rules as unreadable; they are read again after `pause` seconds."""
        self.gone, self._retry_at = True, time.monotonic() + pause

    @property
    def is_due(self) -> bool:
        """Whether it must be read now."""
        if self._retry_at and time.monotonic() >= self._retry_at:
            return True
        return not self.gone and (self.is_polled or (self.requested > 0 and self.is_coming(self.requested)))

    def refresh(self) -> None:
        """Reads the rules if they have changed. A long reading is followed by a pause of the same length, also one in vain.

        Raises:
            OSError: The namespace cannot be entered, or the kernel refused.
            LookupError: The namespace does not exist any more.
            TooManyMessages: There are too many rules or elements.
        """
        if time.monotonic() < self._next_read:
            return
        self._retry_at = 0.0
        fd = self._open()
        began = time.monotonic()
        try:
            with suppress(RulesetChanging):
                prints = self._prints
                self.seen, snapshot = self._read_new(fd, prints)
                if snapshot:
                    self.snapshots.add(snapshot)
                    if snapshot.is_unprinted and prints:
                        self._print_at = print_again_at(began)
                    took = time.monotonic() - began
                    _log.debug(
                        "generation %d of namespace %d read in %.1f ms", self.seen, netns.inode_of(self.space), took * 1e3
                    )
        finally:
            self._next_read = 2 * time.monotonic() - began
            os.close(fd)

    def _read_new(self, fd: int, prints: bool) -> tuple[int, Snapshot | None]:
        """As snapshot.read_new. Rules that were too many are not read again while they are of the same generation."""
        before = self._too_many
        try:
            known = {*self._known, before.generation} if before else self._known
            found = nftables_snapshot.read_new(fd, self.space, known, prints)
        except TooManyMessages as e:
            self._too_many = e if e.generation else None
            raise
        if before and found[0] == before.generation:
            raise before.with_traceback(None)
        self._too_many = None
        return found

    def _open(self) -> int:
        """A descriptor of the namespace, by the last path if it still leads there."""
        inode = netns.inode_of(self.space)
        if self._path:
            with suppress(OSError, LookupError):
                return netns.open_path(self._path, inode)
        self._path = netns.find(inode)
        return netns.open_path(self._path, inode)


class RulesetWatcher:
    """Snapshots by namespace (netns.identity) and generation; a context manager that ends its thread.

    Must be used only on kernels with nf_tables loaded: a request would load it.

    Args:
        pause: Interval of polling, s.
    """

    def __init__(self, pause: float = PAUSE_SECONDS) -> None:
        self._pause = pause
        self._namespaces = NamespaceTable(_Namespace)
        self._lock = threading.Lock()
        self._wake, self._is_closing = threading.Event(), False
        self._changes: BoundedQueue[RulesetUpdate] = BoundedQueue(CHANGES_KEPT, "updates of nftables' rules")
        self._own = OwnGeneration()
        self._thread = Worker("nft rules", self._work).start()

    def poll(self, space: int, seconds: float = 0) -> None:
        """Polls a namespace from now on. `seconds`: longest wait for its first snapshot."""
        found = self._space(space)
        found.is_polled = True
        self._wake.set()
        until = time.monotonic() + seconds
        while not found.snapshots and not found.gone and time.monotonic() < until:
            time.sleep(0.01)

    def _space(self, space: int) -> _Namespace:
        """The entry of a namespace. One that was evicted is read again."""
        with self._lock:
            return self._namespaces[space]

    def find(self, space: int, generation: int) -> Snapshot | None:
        """The snapshot of that generation; None = none (yet)."""
        return self._space(space).snapshots.get(generation)

    def near(self, space: int) -> list[Snapshot]:
        """All snapshots of a namespace, the newest first."""
        return list(self._space(space).snapshots.values())[::-1]

    def is_coming(self, space: int, generation: int) -> bool:
        """Whether that generation is missing but may still be read; if so, requests it.

        If the generation is there, the caller has evicted it, so its update is sent again.
        """
        found = self._space(space)
        known = found.snapshots.get(generation)
        if known and not any(change.inode == space for change in list(self._changes)):
            self._publish(RulesetUpdate(space, found.seen, found.gone, known))
        if not found.is_coming(generation):
            return False
        found.requested = max(found.requested, generation)
        self._wake.set()
        return True

    def changes(self) -> list[RulesetUpdate]:
        """Updates since the last call."""
        return self._changes.read()

    def _work(self) -> bool:
        with self._lock:
            due = [space for space in self._namespaces if space.is_due]
        for space in due:
            self._refresh(space)
        self._wake.wait(self._pause)
        if self._wake.is_set():
            self._wake.clear()
            time.sleep(0.01)
        return not self._is_closing

    def _refresh(self, space: _Namespace) -> None:
        if space.has_current(self._own.of(space.space)):
            return
        before, had = (space.seen, space.gone), space.snapshots.get(space.seen)
        try:
            with rules_read.reading():
                space.refresh()
            space.gone = False
        except TooManyMessages as e:
            user_warnings.add(
                f"The nftables rules of network namespace {netns.inode_of(space.space)} are not read, so its packets show none:"
                f" {e}.",
                ("too many", space.space),
            )
            space.fail(RETRY_SECONDS)
        except (OSError, LookupError):
            space.gone = True
        except Exception as e:
            # These rules are not waited for meanwhile; other namespaces are read as before.
            user_warnings.add_failure(f"reading the nftables rules of network namespace {netns.inode_of(space.space)}", e)
            space.fail(RETRY_SECONDS)
        if space.gone or (space.seen, space.gone) != before or space.snapshots.get(space.seen) is not had:
            self._publish(RulesetUpdate(space.space, space.seen, space.gone, space.snapshots.get(space.seen)))
            self._limit(space.space)

    def _limit(self, space: int) -> None:
        """Evicts snapshots that are too many together."""
        with self._lock:
            emptied = self._namespaces.limit_objects(space)
        for each in emptied:
            _log.debug("rules of namespace %d given up: too many together", netns.inode_of(each))
            user_warnings.add(
                f"The nftables rules of network namespace {netns.inode_of(each)} are read again when they are needed: more than"
                f" {OBJECTS_KEPT} rules and map elements are not kept.",
                ("too many together", each),
            )

    def _publish(self, change: RulesetUpdate) -> None:
        self._changes.append(change)

    def close(self) -> None:
        """Ends the thread."""
        self._is_closing = True
        self._wake.set()
        self._thread.join(END_SECONDS)
        self._own.close()

    def __enter__(self) -> RulesetWatcher:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
