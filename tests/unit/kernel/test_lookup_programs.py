# SPDX-License-Identifier: Apache-2.0
"""Programs of sk_lookup over time, read from the kernel that runs the tests, in a network namespace of their own."""

from __future__ import annotations

import os
import time

import pytest

from tests.support.bpf_programs import SK_LOOKUP
from tests.unit.kernel.test_attached_programs import inside
from tests.unit.kernel.test_socket_programs import OWN
from tests.unit.kernel.test_socket_programs import attach as attach_program
from tracer.kernel import bpf_syscall, lookup_programs
from tracer.kernel.attached_programs import ProgramCatalog
from tracer.kernel.lookup_programs import LookupPrograms
from tracer.model.bpf_program import ProgramPeriod


def attach(name: str) -> int:
    try:
        return attach_program(OWN, name, SK_LOOKUP, bpf_syscall.SK_LOOKUP)
    except OSError as e:
        pytest.skip(f"no sk_lookup here: {e}")


def names(periods: tuple[ProgramPeriod, ...]) -> list[list[str]]:
    return [[each.name for each in period.programs] for period in periods]


def test_links_of_all_namespaces() -> None:
    def work() -> None:
        link, netns = attach("cil_lookup"), OWN.stat().st_ino
        (found,) = [each for each in lookup_programs.links() if each.netns == netns]
        fd = os.open(OWN, os.O_RDONLY)
        assert (found.program,) == bpf_syscall.attached_ids(fd, bpf_syscall.SK_LOOKUP).numbers
        os.close(fd)
        os.close(link)
        assert netns not in {each.netns for each in lookup_programs.links()}

    inside(work)


def test_without_a_program_nothing_is_known_of_a_namespace() -> None:
    assert LookupPrograms(ProgramCatalog()).periods(1, time.monotonic_ns()) == ()


def test_periods() -> None:
    def work() -> None:
        first, netns = attach("first"), OWN.stat().st_ino
        programs = LookupPrograms(ProgramCatalog())
        at = time.monotonic_ns()
        (period,) = programs.periods(netns, at)
        assert names((period,)) == [["first"]] and period.since < at and not period.until
        assert period.programs[0].kind == "sk_lookup"
        second = attach("second")
        assert names(programs.periods(netns, at)) == [["first"]], "it was read after that time"
        found = programs.periods(netns, time.monotonic_ns())
        assert names(found) == [["first"], ["first", "second"]]
        os.close(first)
        os.close(second)
        assert names(programs.periods(netns, time.monotonic_ns()))[-1] == []

    inside(work)


def test_a_program_that_is_attached_again_is_another_one() -> None:
    def work() -> None:
        link, netns = attach("cil_lookup"), OWN.stat().st_ino
        programs = LookupPrograms(ProgramCatalog())
        os.close(link)
        link = attach("cil_lookup")
        assert names(programs.periods(netns, time.monotonic_ns())) == [["cil_lookup"], ["cil_lookup"]]
        os.close(link)

    inside(work)


def test_it_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookup_programs, "HISTORIES_KEPT", 2)
    links = [bpf_syscall.NetnsLink(n, 1, 100 + n, bpf_syscall.SK_LOOKUP) for n in range(1, 6)]
    monkeypatch.setattr(bpf_syscall, "netns_links", lambda most: links)
    programs = LookupPrograms(ProgramCatalog())
    assert len(programs._histories) == len(programs._links) == 2 and programs._histories.evicted == 3


@pytest.mark.parametrize("code", [1, 22])
def test_links_that_cannot_be_read(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def refused(most: int) -> list[bpf_syscall.NetnsLink]:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(bpf_syscall, "netns_links", refused)
    assert lookup_programs.links() == []
    assert LookupPrograms(ProgramCatalog()).periods(1, time.monotonic_ns()) == ()
