# SPDX-License-Identifier: Apache-2.0
"""Which programs the packets of a cgroup's sockets meet, over time: its own, and those of the cgroups above it.

The kernel announces no change of them. So all cgroups are read when a run is built, and the cgroup of a drop again when its
programs are asked for. A program that was attached and removed again between two readings is not seen. Only the hierarchy of
version 2 has programs. Every request here only reads.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic_ns

from tracer.kernel import bpf_syscall
from tracer.kernel.attached_programs import Attached, ProgramCatalog
from tracer.kernel.program_history import ProgramHistory
from tracer.model.bpf_program import AttachedProgram, AttachPoint, ProgramKind, ProgramPeriod
from tracer.util.lru_dict import LruDict
from tracer.util.octets import decoded

_log = logging.getLogger(__name__)

CGROUPS_KEPT = 8192
"""Most cgroups that are kept, and that are looked at in one search."""
HISTORIES_KEPT = 4096
"""Most places of cgroups with programs."""
SEARCH_SECONDS = 1.0
"""Longest search for cgroups, s."""
SEARCH_PAUSE_SECONDS = 5.0
"""Shortest time between the beginnings of two searches, s."""
PATH_CHARACTERS = 512
"""Longest path of a cgroup that is kept, characters."""

_TYPES = {
    AttachPoint.CGROUP_INGRESS: bpf_syscall.CGROUP_INET_INGRESS,
    AttachPoint.CGROUP_EGRESS: bpf_syscall.CGROUP_INET_EGRESS,
    AttachPoint.CONNECT4: bpf_syscall.CONNECT_TYPES["connect4"],
    AttachPoint.CONNECT6: bpf_syscall.CONNECT_TYPES["connect6"],
    AttachPoint.SENDMSG4: bpf_syscall.CONNECT_TYPES["sendmsg4"],
    AttachPoint.SENDMSG6: bpf_syscall.CONNECT_TYPES["sendmsg6"],
}
SEARCHED = (AttachPoint.CGROUP_INGRESS, AttachPoint.CGROUP_EGRESS)
"""Programs that are read in a search. Others are, too, if the root of the hierarchy has some, as of Cilium; else they are read
when they are asked for."""
_Numbers = dict[AttachPoint, tuple[int, ...]]
"""Ids of the programs that run for a cgroup, in their order."""


@dataclass(frozen=True)
class _Cgroup:
    """A cgroup.

    Attributes:
        path: Its path below the root of the hierarchy: "/system.slice".
        read: When its programs had been read first, ns, CLOCK_MONOTONIC.
    """

    path: str
    read: int


@dataclass(frozen=True)
class _Found:
    """What one cgroup has.

    Attributes:
        numbers: See _Numbers.
        owners: For each place, the path of the cgroup where a program is attached, by its id.
    """

    numbers: _Numbers
    owners: dict[AttachPoint, dict[int, str]]


_NOTHING = _Found({}, {})


class CgroupPrograms:
    """The programs of this machine's cgroups. One thread at a time may call it.

    Args:
        catalog: Describes programs.
        root: Directory of the hierarchy; None = it is found.
        seconds: Longest time for the first reading, s.
    """

    def __init__(self, catalog: ProgramCatalog, root: Path | None = None, seconds: float = SEARCH_SECONDS) -> None:
        self._catalog = catalog
        self._root = root or hierarchy()
        self._cgroups: LruDict[int, _Cgroup] = LruDict(CGROUPS_KEPT, "cgroups")
        self._histories: LruDict[tuple[int, AttachPoint], ProgramHistory] = LruDict(
            HISTORIES_KEPT, "places of cgroups' programs"
        )
        self._searched = 0
        self._search(seconds)

    def periods(self, cgroup: int, point: AttachPoint, time: int) -> tuple[ProgramPeriod, ...]:
        """The programs of a cgroup, oldest first; () = they cannot be read.

        Args:
            cgroup: Its id.
            point: Which programs.
            time: Time of a drop, ns, CLOCK_MONOTONIC.
        """
        history = self._histories.get((cgroup, point))
        if history is None or history.last <= time:
            if cgroup not in self._cgroups and monotonic_ns() > self._searched + SEARCH_PAUSE_SECONDS * 1e9:
                self._search(SEARCH_SECONDS)
            if not self._read_again(cgroup, point):
                return ()
            history = self._histories.get((cgroup, point))
        if history:
            return history.periods(time)
        if self._histories.evicted:
            return ()
        return (ProgramPeriod(self._cgroups[cgroup].read if point in SEARCHED else monotonic_ns(), 0, ()),)

    def _read_again(self, cgroup: int, point: AttachPoint) -> bool:
        """Reads one place of a cgroup with a known path; False = it cannot be read, or has gone."""
        known = self._cgroups.get(cgroup)
        if known is None or self._root is None:
            return False
        began = monotonic_ns()
        try:
            found, inode = _NOTHING, 0
            for path in _with_ancestors(known.path):
                fd = _opened(self._root, path)
                try:
                    found = _read(fd, path, found, (point,))
                    inode = os.fstat(fd).st_ino
                finally:
                    os.close(fd)
        except OSError as e:
            _log.debug("programs of the cgroup %s not read: %s", known.path, e)
            return False
        if inode != cgroup:  # another cgroup has this path now
            return False
        self._keep({cgroup: (known.path, found)}, began, monotonic_ns())
        return True

    def _search(self, seconds: float) -> None:
        """Reads all cgroups, those above before those below."""
        if self._root is None:
            return
        began = self._searched = monotonic_ns()
        found: dict[int, tuple[str, _Found]] = {}
        by_path: dict[str, _Found] = {}
        points: tuple[AttachPoint, ...] = tuple(_TYPES)
        for path, fd in walk(self._root, seconds):
            try:
                by_path[path] = _read(fd, path, by_path.get(os.path.dirname(path), _NOTHING), points)
                if path == "/":
                    points = tuple(point for point in _TYPES if point in SEARCHED or by_path[path].numbers[point])
                found[os.fstat(fd).st_ino] = path, by_path[path]
            except OSError as e:
                _log.debug("programs of the cgroup %s not read: %s", path, e)
        self._keep(found, began, monotonic_ns())

    def _keep(self, found: dict[int, tuple[str, _Found]], began: int, ended: int) -> None:
        """Joins a reading with the earlier ones."""
        programs = {
            (cgroup, point): tuple(
                AttachedProgram(ProgramKind.CGROUP, number, cgroup=of_cgroup.owners[point].get(number, "")[:PATH_CHARACTERS])
                for number in of_cgroup.numbers[point]
            )
            for cgroup, (_, of_cgroup) in found.items()
            for point in of_cgroup.numbers
        }
        described = self._catalog.describe(each for attached in programs.values() for each in attached)
        for (cgroup, point), attached in programs.items():
            known, history = self._cgroups.get(cgroup), self._histories.get((cgroup, point))
            named = tuple(replace(described[each.number], kind=each.kind, cgroup=each.cgroup) for each in attached)
            if history is None and named:
                was_read = known is not None and point in SEARCHED and not self._histories.evicted
                before = (ProgramPeriod(known.read, known.read, ()),) if known and was_read else ()
                history = self._histories[cgroup, point] = ProgramHistory(Attached(named), ended, before=before)
            elif history and history.attached.programs != named:
                history.change(Attached(named), ended)
            if history:
                history.last = began
        for cgroup, (path, _) in found.items():
            if cgroup not in self._cgroups:
                self._cgroups[cgroup] = _Cgroup(path, ended)


def hierarchy(proc: Path = Path("/proc")) -> Path | None:
    """The directory where the hierarchy of version 2 is mounted; None = it is not.

    Args:
        proc: Where processes are found. What the first process sees is used; else what this one sees, as in a container.
    """
    for process in ("1", "self"):
        with suppress(OSError):
            for line in decoded((proc / process / "mountinfo").read_bytes()).splitlines():
                fields, _, source = line.partition(" - ")
                mounted = fields.split(" ")[4:5]
                if source.startswith("cgroup2 ") and mounted and "\\" not in mounted[0]:
                    root = proc / process / "root" / mounted[0].lstrip("/")
                    if root.is_dir():
                        return root
    return None


def walk(root: Path, seconds: float, depth: int = 0) -> Iterator[tuple[str, int]]:
    """Yields path and descriptor of each cgroup, those above before those below; at most CGROUPS_KEPT.

    Args:
        root: Directory of the hierarchy.
        seconds: Longest time, s.
        depth: Number of levels below the root that are looked at; 0 = all.
    """
    until, count, waiting = monotonic_ns() + seconds * 1e9, 0, ["/"]
    while waiting and count < CGROUPS_KEPT and monotonic_ns() < until:
        path = waiting.pop()
        count += 1
        try:
            fd = _opened(root, path)
            try:
                yield path, fd
                if not depth or path.count("/") < depth or path == "/":
                    waiting += [os.path.join(path, name) for name in _below(fd)]
            finally:
                os.close(fd)
        except OSError as e:
            _log.debug("cgroup %s not read: %s", path, e)


def _opened(root: Path, path: str) -> int:
    return os.open(root / path.lstrip("/"), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)


def _below(fd: int) -> Iterator[str]:
    """Yields the names of the cgroups below a cgroup."""
    with os.scandir(fd) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield entry.name


def _with_ancestors(path: str) -> Iterator[str]:
    """Yields the paths from the root of the hierarchy to this one."""
    parts = [part for part in path.split("/") if part]
    for count in range(len(parts) + 1):
        yield "/" + "/".join(parts[:count])


def _read(fd: int, path: str, above: _Found, points: Iterable[AttachPoint]) -> _Found:
    """What a cgroup has at these places. above: what the cgroup above it has.

    Raises:
        OSError: It cannot be read.
    """
    numbers: _Numbers = {}
    owners: dict[AttachPoint, dict[int, str]] = {}
    for point in points:
        kind = _TYPES[point]
        # A program that is attached here and above runs twice, and counts once.
        numbers[point] = tuple(dict.fromkeys(bpf_syscall.attached_ids(fd, kind, bpf_syscall.QUERY_EFFECTIVE).numbers))
        owners[point] = above.owners.get(point, {})
        if numbers[point] != above.numbers.get(point, ()):
            own = bpf_syscall.attached_ids(fd, kind).numbers
            owners[point] = owners[point] | dict.fromkeys(own, path)
    return _Found(numbers, owners)
