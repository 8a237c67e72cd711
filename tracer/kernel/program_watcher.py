# SPDX-License-Identifier: Apache-2.0
"""What is attached to interfaces, and to cgroups, over time: the periods during which the same programs were at a place.

Programs are read when a run is built, after each change that the kernel announces, and when the program of a drop is asked for.
A period holds only between two readings with the same result and without an announced change between them. tcx announces
nothing, but counts its changes. What was attached by a link of XDP and removed again between two readings is not seen.

No descriptor of a namespace is kept: it would keep the namespace of a removed pod alive.
"""

from __future__ import annotations

import logging
import os
import select
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from time import monotonic_ns
from typing import TypeVar

from tracer.kernel import attached_programs
from tracer.kernel.attached_programs import Attached, Place, ProgramCatalog
from tracer.kernel.cgroup_programs import CgroupPrograms
from tracer.kernel.lookup_programs import LookupPrograms
from tracer.kernel.program_history import ProgramHistory
from tracer.model.bpf_program import CGROUP_POINTS, AttachPoint, ProgramPeriod
from tracer.node import namespaces, netns
from tracer.node.rtnetlink import ANY_INTERFACE, ChangeListener, Rtnetlink
from tracer.util.lru_dict import LruDict
from tracer.util.worker import Worker, user_warnings

_log = logging.getLogger(__name__)
T = TypeVar("T")

NAMESPACES_KEPT = 512
"""Most namespaces of which programs are kept."""
PLACES_KEPT = 16_384
"""Most places of interfaces with programs."""
CHANGES_KEPT = 1024
"""Most interfaces of one namespace with changes that are told apart; with more, all count as changed."""
START_SECONDS = 1.0
"""Longest time that the start of a run takes for reading namespaces, s; the thread reads the others."""
WAIT_SECONDS = 10.0
"""Longest wait of the thread for a change, s; then it looks for new namespaces with a name, as after each change."""
SETTLE_SECONDS = 0.1
"""Shortest pause after a change, s: changes come in groups, as for a new pod."""
PACE = 10
"""The pause after a change is at least this number of times as long as the last reading."""
MOST_PAUSE_SECONDS = 2.0
"""Longest such pause, s."""
TRIES = 3
"""Readings in a row that a change may disturb."""
LATE = (
    "eBPF programs are attached to interfaces, and none was found when this run began: which packets they redirect or rewrite"
    " is not shown. Start again to see it."
)
END_SECONDS = 1.0
"""Longest wait at the end of a run for the thread, s."""


class _Namespace:
    """One namespace.

    Attributes:
        first: When it had been read first, ns, CLOCK_MONOTONIC; 0 = it was not read.
        last: Begin of the last reading, ns, CLOCK_MONOTONIC.
        nsid: Its number in the tracer's namespace; -1 = the same one; None = changes are not announced.
        changed: Interfaces with announced changes since the last reading.
    """

    def __init__(self) -> None:
        self.first = self.last = 0
        self.nsid: int | None = None
        self.changed: set[int] = set()


class ProgramWatcher:
    """The programs of this machine; a context manager that ends its thread.

    Args:
        catalog: Describes programs.
        listens: Whether changes are watched for.
        is_expecting: The probes for what programs do beside dropping are attached. Without them, one sentence is said when
            a program is found.
    """

    def __init__(self, catalog: ProgramCatalog | None = None, listens: bool = True, is_expecting: bool = True) -> None:
        self._is_expecting = is_expecting
        self._catalog = catalog or ProgramCatalog()
        self._lock = threading.RLock()
        self._namespaces: LruDict[int, _Namespace] = LruDict(NAMESPACES_KEPT, "namespaces with eBPF programs")
        self._places: LruDict[tuple[int, Place], ProgramHistory] = LruDict(PLACES_KEPT, "places of eBPF programs")
        self._own, self._is_closing, self._pause = _own_inode(), False, SETTLE_SECONDS
        self._ending = os.pipe()
        self._listener = _listener() if listens else None
        self._read_first()
        self._cgroups = CgroupPrograms(self._catalog, seconds=START_SECONDS)
        self._lookups = LookupPrograms(self._catalog)
        self._thread = Worker("eBPF programs", self._work).start() if self._listener else None

    def periods(self, netns: int, ifindex: int, point: AttachPoint, time: int) -> tuple[ProgramPeriod, ...]:
        """The programs of a place, oldest first; () = they cannot be read.

        Args:
            netns: Inode of the interface's namespace; without meaning for a cgroup.
            ifindex: Number of the interface, or the id of the cgroup.
            point: Which place of it.
            time: Time of a drop, ns, CLOCK_MONOTONIC.
        """
        with self._lock:
            if point in CGROUP_POINTS:
                return self._cgroups.periods(ifindex, point, time)
            if point is AttachPoint.SK_LOOKUP:
                return self._lookups.periods(netns, time)
            place = ifindex, point
            if not self._is_verified(netns, place, time):
                self._read(netns)
            space, history = self._namespaces.get(netns), self._places.get((netns, place))
            if history:
                return history.periods(time)
            if space is None or not space.first or self._places.evicted:
                return ()
            return (ProgramPeriod(space.first, 0 if space.last > time else space.last, ()),)

    def _is_verified(self, inode: int, place: Place, time: int) -> bool:
        """Whether a place was read after this time. Reads only what is not announced there, if that is enough."""
        space, history = self._namespaces.get(inode), self._places.get((inode, place))
        if space is None or history is None:
            return space is not None and space.last > time
        if history.last > time:
            return True
        self._note_changes()
        began = monotonic_ns()
        try:
            is_same = space.nsid is not None and netns.inside_inode(
                inode, self._own, lambda: attached_programs.is_unchanged(place, history.attached, self._elsewhere)
            )
        except Exception:  # then all of the namespace is read, which says what is wrong
            return False
        self._note_changes()
        if not is_same or space.changed & {place[0], ANY_INTERFACE}:
            return False
        history.last = began
        return True

    def _read_first(self) -> None:
        """Reads the tracer's namespace, that of the node and those with a name."""
        until = monotonic_ns() + int(START_SECONDS * 1e9)
        self._read(self._own)
        for inode in _named():
            if monotonic_ns() < until:
                self._read_new(inode)

    def _read_new(self, inode: int) -> None:
        with self._lock:
            if inode and inode not in self._namespaces:
                self._read(inode)

    def _work(self) -> bool:
        assert self._listener
        changes, ending = self._listener.sock.fileno(), self._ending[0]
        readable, _, _ = select.select([changes, ending], [], [], WAIT_SECONDS)
        if changes in readable:
            select.select([ending], [], [], min(self._pause, MOST_PAUSE_SECONDS))
            with self._lock:
                self._note_changes()
                changed = [inode for inode, space in self._namespaces.items() if space.changed]
            for inode in changed:
                with self._lock:
                    self._read(inode)
        if not self._is_closing:
            for inode in _named():
                self._read_new(inode)
        return not self._is_closing

    def _note_changes(self) -> None:
        """Takes announced changes. A number that no namespace had when it was read is that of a new one, or of one that counts
        as not watched."""
        found = self._listener.read() if self._listener else []
        spaces = list(self._namespaces.values())
        if found is None:
            for space in spaces:
                space.changed.add(ANY_INTERFACE)
            return
        for nsid, ifindex in set(found):
            for space in spaces:
                if space.nsid == nsid:
                    space.changed.add(ifindex if len(space.changed) < CHANGES_KEPT else ANY_INTERFACE)

    def _read(self, inode: int) -> None:
        """Reads a namespace. What cannot be read keeps the periods that were read, which then do not last until now."""
        space = self._namespaces.get(inode)
        if space is None:
            space = self._namespaces[inode] = _Namespace()
        self._note_changes()
        for _ in range(TRIES):
            earlier, space.changed = space.changed, set()
            began = monotonic_ns()
            try:
                found, nsid = (
                    netns.inside_inode(inode, self._own, lambda: attached_programs.read(self._catalog, self._elsewhere)),
                    self._number(inode),
                )
            except (OSError, LookupError) as e:
                _log.debug("programs of namespace %d not read: %s", inode, e)
                space.changed |= earlier
                return
            except Exception as e:
                user_warnings.add_failure("reading the eBPF programs of a network namespace", e)
                space.changed |= earlier
                return
            ended = monotonic_ns()
            self._pause = max(SETTLE_SECONDS, PACE * (ended - began) / 1e9)
            is_watched, space.nsid = nsid is not None and space.nsid == nsid, nsid
            self._note_changes()
            if not space.changed:
                self._keep(inode, space, found, earlier if is_watched else {ANY_INTERFACE}, began, ended)
                return
            # It is not known whether the change came before or after the reading.
            space.changed |= earlier
        _log.debug("programs of namespace %d changed during each of %d readings", inode, TRIES)

    def _keep(
        self, inode: int, space: _Namespace, found: dict[Place, Attached], changed: set[int], began: int, ended: int
    ) -> None:
        """Joins a reading with the earlier ones. changed: interfaces with announced changes between them."""
        if not self._is_expecting and has_programs(found):
            self._is_expecting = True
            user_warnings.add(LATE)
        last = space.last
        if not space.first:
            space.first = ended
        known = [place for of, place in self._places if of == inode]
        for place in {*found, *known}:
            attached, history = found.get(place, Attached()), self._places.get((inode, place))
            is_same = not changed & {place[0], ANY_INTERFACE}
            if history is None:
                before = (ProgramPeriod(space.first, last, ()),) if last and not self._places.evicted else ()
                history = self._places[inode, place] = ProgramHistory(attached, ended, before=before)
            elif history.attached != attached or not is_same:
                history.change(attached, ended)
            history.last = began
        if ANY_INTERFACE in changed:
            space.first = ended
        space.last = began

    def _elsewhere(self, number: int, work: Callable[[], T]) -> T:
        """Calls `work` in the tracer's own namespace, if it is the one with this number in this thread's namespace.

        Raises:
            OSError: It cannot be entered or read.
            LookupError: It is not, or not known to be.
        """
        fd = netns.open_path(netns.find(self._own), self._own)
        try:
            with Rtnetlink() as route:
                if route.namespace_number(fd) != number:
                    raise LookupError(number)
            return netns.inside(fd, work)
        finally:
            os.close(fd)

    def _number(self, inode: int) -> int | None:
        """The number by which changes of a namespace are announced, -1 = our own; None = they are not.

        Raises:
            OSError: It cannot be opened.
            LookupError: It does not exist any more.
        """
        if inode == self._own or not self._listener or not self._listener.hears_others:
            return -1 if inode == self._own and self._listener else None
        fd = netns.open_path(netns.find(inode), inode)
        try:
            with Rtnetlink() as route:
                number = route.namespace_number(fd)
        finally:
            os.close(fd)
        return number if number >= 0 else None

    def close(self) -> None:
        """Ends the thread."""
        self._is_closing = True
        os.write(self._ending[1], b"x")
        if self._thread:
            self._thread.join(END_SECONDS)
        if self._listener:
            self._listener.close()
        if self._thread is None or not self._thread.is_alive():
            for fd in self._ending:
                os.close(fd)

    def __enter__(self) -> ProgramWatcher:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def is_any_attached(seconds: float = START_SECONDS) -> bool:
    """Whether an eBPF program is attached to an interface of the tracer's namespace, that of the node, or one with a name.

    Args:
        seconds: Longest time for namespaces other than the tracer's, s.
    """
    own, until = _own_inode(), monotonic_ns() + int(seconds * 1e9)
    for inode in dict.fromkeys([own, *_named()]):
        if inode != own and monotonic_ns() > until:
            break
        with suppress(OSError, LookupError):
            found = netns.inside_inode(inode, own, attached_programs.read_numbers)
            if has_programs(found):
                return True
    return False


def has_programs(found: Mapping[Place, Attached]) -> bool:
    """Whether there is an eBPF program among what is attached."""
    return any(program.number for attached in found.values() for program in attached.programs)


def _listener() -> ChangeListener | None:
    try:
        return ChangeListener()
    except OSError as e:
        _log.debug("changes of programs are not watched: %s", e)
        return None


def _own_inode() -> int:
    with suppress(OSError):
        return os.stat("/proc/self/ns/net").st_ino
    return 0


def _named() -> list[int]:
    """Inodes of the node's namespace and of those with a name."""
    found: list[int] = []
    for path in (Path("/proc/1/ns/net"), *namespaces.named_files()):
        with suppress(OSError):
            found.append(path.stat().st_ino)
    return list(dict.fromkeys(found))
