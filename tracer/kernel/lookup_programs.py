# SPDX-License-Identifier: Apache-2.0
"""Which programs of sk_lookup are attached in network namespaces, over time.

They are attached by links alone. So all links are read when a run is built, and again when the programs of a decision are asked
for; a namespace need not be entered for it. The kernel announces no change, but a link has an id of its own: a program that was
removed and attached again is another one. What was attached and removed again between two readings is not seen.
"""

from __future__ import annotations

import errno
import logging
from dataclasses import replace
from time import monotonic_ns

from tracer.kernel import bpf_syscall
from tracer.kernel.attached_programs import Attached, ProgramCatalog
from tracer.kernel.bpf_syscall import NetnsLink
from tracer.kernel.program_history import ProgramHistory
from tracer.model.bpf_program import AttachedProgram, ProgramKind, ProgramPeriod
from tracer.util.lru_dict import LruDict

_log = logging.getLogger(__name__)

MOST_LINKS = 4096
"""Most links of any kind that are looked at in one reading."""
HISTORIES_KEPT = 1024
"""Most namespaces of which programs are kept."""


def links() -> list[NetnsLink]:
    """The links of programs of sk_lookup on this machine; [] = none, or they cannot be read."""
    try:
        return [each for each in bpf_syscall.netns_links(MOST_LINKS) if each.attach_type == bpf_syscall.SK_LOOKUP]
    except OSError as e:
        if e.errno != errno.EINVAL:  # EINVAL: before 5.8 a kernel cannot list links
            _log.debug("links of programs not read: %s", e)
        return []


class LookupPrograms:
    """The programs of this machine's namespaces. One thread at a time may call it.

    Args:
        catalog: Describes programs.
    """

    def __init__(self, catalog: ProgramCatalog) -> None:
        self._catalog = catalog
        self._histories: LruDict[int, ProgramHistory] = LruDict(HISTORIES_KEPT, "namespaces with programs of sk_lookup")
        self._links: dict[int, tuple[int, ...]] = {}
        self._first = 0
        self._read()

    def periods(self, netns: int, time: int) -> tuple[ProgramPeriod, ...]:
        """The programs of a namespace, oldest first; () = they are not known.

        Args:
            netns: Its inode.
            time: Time of a decision, ns, CLOCK_MONOTONIC.
        """
        history = self._histories.get(netns)
        if history is None or history.last <= time:
            self._read()
            history = self._histories.get(netns)
        return history.periods(time) if history else ()

    def _read(self) -> None:
        """Reads all links, and joins them with the earlier reading."""
        began = monotonic_ns()
        now: dict[int, list[NetnsLink]] = {}
        for link in links():
            now.setdefault(link.netns, []).append(link)
        ended = monotonic_ns()
        programs = {each.program: AttachedProgram(ProgramKind.SK_LOOKUP, each.program) for of in now.values() for each in of}
        described = self._catalog.describe(programs.values())
        for netns in {*now, *self._histories}:
            of = now.get(netns, [])
            numbers = tuple(each.number for each in of)
            attached = Attached(tuple(replace(described[each.program], kind=ProgramKind.SK_LOOKUP) for each in of))
            history = self._histories.get(netns)
            if history is None:
                before = (ProgramPeriod(self._first, self._first, ()),) if self._first else ()
                history = self._histories[netns] = ProgramHistory(attached, ended, before=before)
            elif numbers != self._links.get(netns):
                history.change(attached, ended)
            history.last = began
            self._links[netns] = numbers
        self._links = {netns: self._links[netns] for netns in self._histories}
        self._first = self._first or ended
