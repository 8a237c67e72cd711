# SPDX-License-Identifier: Apache-2.0
"""Programs that decide before a packet exists, or instead of the search for its socket.

At connect() and sendmsg() a program of a cgroup may replace the address that a socket asked for: so Cilium balances load, and a
Service's address is in no packet. A program of sk_lookup chooses the socket that gets a packet. Neither leaves a trace in
packets; so only what is attached can be said. Every request here only reads.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from tracer.kernel import bpf_syscall, cgroup_programs
from tracer.kernel.attached_programs import ProgramCatalog
from tracer.model.bpf_program import AttachedProgram, ProgramKind

_log = logging.getLogger(__name__)

LEVELS = 2
"""Levels of cgroups below the root that are looked at: those of all pods, of a class of pods, and of a service."""


@dataclass(frozen=True)
class SocketProgram:
    """A program.

    Attributes:
        program: The program.
        points: Where it is attached: "connect4", "sendmsg6", "sk_lookup"; several for one that is attached more than once.
    """

    program: AttachedProgram
    points: tuple[str, ...]


def at_connect(catalog: ProgramCatalog, root: Path | None = None) -> list[SocketProgram]:
    """The programs that may replace addresses, by cgroup. Cgroups below LEVELS are not looked at.

    Args:
        catalog: Describes programs.
        root: Directory of the hierarchy of cgroups; None = it is found.

    Raises:
        OSError: They cannot be read.
    """
    root = root or cgroup_programs.hierarchy()
    found: dict[AttachedProgram, list[str]] = {}
    for path, fd in cgroup_programs.walk(root, cgroup_programs.SEARCH_SECONDS, LEVELS) if root else ():
        for point, kind in bpf_syscall.CONNECT_TYPES.items():
            for number in _ids(fd, kind):
                found.setdefault(AttachedProgram(ProgramKind.CONNECT, number, cgroup=path), []).append(point)
    return _described(catalog, found)


def of_lookup(catalog: ProgramCatalog, namespaces: Iterable[Path]) -> list[SocketProgram]:
    """The programs of sk_lookup in network namespaces. namespaces: their files, as /proc/1/ns/net.

    Raises:
        OSError: They cannot be read.
    """
    found: dict[AttachedProgram, list[str]] = {}
    for path in namespaces:
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as e:
            _log.debug("namespace %s not read: %s", path, e)
            continue
        try:
            for number in _ids(fd, bpf_syscall.SK_LOOKUP):
                found.setdefault(AttachedProgram(ProgramKind.SK_LOOKUP, number), []).append(ProgramKind.SK_LOOKUP.value)
        finally:
            os.close(fd)
    return _described(catalog, {program: points[:1] for program, points in found.items()})


def _ids(fd: int, kind: int) -> tuple[int, ...]:
    try:
        return bpf_syscall.attached_ids(fd, kind).numbers
    except OSError as e:
        if e.errno == errno.EINVAL:  # a kernel without such programs
            return ()
        raise


def _described(catalog: ProgramCatalog, found: dict[AttachedProgram, list[str]]) -> list[SocketProgram]:
    names = catalog.describe(found)
    return [
        SocketProgram(replace(names[each.number], kind=each.kind, cgroup=each.cgroup), tuple(points))
        for each, points in found.items()
    ]
