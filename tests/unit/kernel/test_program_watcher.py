# SPDX-License-Identifier: Apache-2.0
"""Periods of programs at interfaces of a new network namespace, from the kernel that runs the tests."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable

import pytest

from tests.support import bpf_programs
from tests.support.bpf_programs import SCHED_CLS, XDP
from tests.unit.kernel.test_attached_programs import inside
from tracer.kernel import attached_programs, program_history, program_watcher
from tracer.kernel.attached_programs import Attached, Place, ProgramCatalog
from tracer.kernel.bpf_syscall import TCX_INGRESS
from tracer.kernel.program_watcher import ProgramWatcher, is_any_attached
from tracer.model.bpf_program import AttachedProgram, AttachPoint, ProgramPeriod
from tracer.packets.program_drops import place_of, program_drop

UNCERTAIN = "what was attached at that moment is not known"
Watched = Callable[[ProgramWatcher, int, int], None]


def watched(monkeypatch: pytest.MonkeyPatch, work: Watched, listens: bool = True) -> None:
    """Calls `work` with a watcher of a new namespace, its inode, and the number of its interface v0."""

    def run() -> None:
        inode = os.stat("/proc/thread-self/ns/net").st_ino
        monkeypatch.setattr(program_watcher, "_own_inode", lambda: inode)
        monkeypatch.setattr(program_watcher, "_named", list)
        with ProgramWatcher(listens=listens) as watcher:
            work(watcher, inode, socket.if_nametoindex("v0"))

    inside(run)


def names(watcher: ProgramWatcher, inode: int, index: int, time_ns: int) -> tuple[list[str], str]:
    """The candidates for a drop at this time, and the doubt."""
    place = place_of("TC_INGRESS", "")
    assert place
    found = program_drop(place, "v0", time_ns, watcher.periods(inode, index, AttachPoint.TC_INGRESS, time_ns))
    assert found
    return [each.name for each in found.candidates], found.doubt


def test_a_program_that_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    def work(watcher: ProgramWatcher, inode: int, index: int) -> None:
        bpf_programs.attach_tc("v0", bpf_programs.load("cil_one", SCHED_CLS, 9))
        assert names(watcher, inode, index, time.monotonic_ns())[0] == ["cil_one"]
        assert names(watcher, inode, index, time.monotonic_ns()) == (["cil_one"], "")
        assert names(watcher, inode, index, time.monotonic_ns()) == (["cil_one"], "")

    watched(monkeypatch, work)


def test_a_change_is_read_without_a_drop(monkeypatch: pytest.MonkeyPatch) -> None:
    def work(watcher: ProgramWatcher, inode: int, index: int) -> None:
        bpf_programs.attach_tc("v0", bpf_programs.load("cil_one", SCHED_CLS, 9))
        until = time.monotonic() + 5
        while not len(watcher._places) and time.monotonic() < until:
            time.sleep(0.02)
        time.sleep(0.05)
        assert names(watcher, inode, index, time.monotonic_ns()) == (["cil_one"], ""), "read before the drop, and after it"

    watched(monkeypatch, work)


def test_a_program_that_was_replaced_between_reading_and_drop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither is named: the drop may be of either."""

    def work(watcher: ProgramWatcher, inode: int, index: int) -> None:
        bpf_programs.attach_tc("v0", bpf_programs.load("cil_one", SCHED_CLS, 9))
        assert names(watcher, inode, index, time.monotonic_ns())[0] == ["cil_one"]
        dropped = time.monotonic_ns()
        bpf_programs.detach_tc("v0")
        bpf_programs.attach_tc("v0", bpf_programs.load("cil_two", SCHED_CLS, 9))
        assert names(watcher, inode, index, dropped) == (
            ["cil_one", "cil_two"],
            "what was attached at that moment is not known",
        )
        assert names(watcher, inode, index, time.monotonic_ns()) == (["cil_two"], "")

    watched(monkeypatch, work, listens=True)


def test_a_program_that_was_there_only_for_the_drop(monkeypatch: pytest.MonkeyPatch) -> None:
    """The readings before and after are equal; the announced changes between them show that they are two periods."""

    def work(watcher: ProgramWatcher, inode: int, index: int) -> None:
        stays = bpf_programs.load("cil_one", SCHED_CLS, 9)
        bpf_programs.attach_tc("v0", stays)
        assert names(watcher, inode, index, time.monotonic_ns())[0] == ["cil_one"]
        with watcher._lock:  # the thread reads nothing meanwhile
            bpf_programs.detach_tc("v0")
            bpf_programs.attach_tc("v0", bpf_programs.load("other", SCHED_CLS, 9))
            dropped = time.monotonic_ns()
            bpf_programs.detach_tc("v0")
            bpf_programs.attach_tc("v0", stays)
            assert names(watcher, inode, index, dropped) == (["cil_one"], "what was attached at that moment is not known")

    watched(monkeypatch, work)


def test_without_announced_changes_nothing_is_certain(monkeypatch: pytest.MonkeyPatch) -> None:
    def work(watcher: ProgramWatcher, inode: int, index: int) -> None:
        bpf_programs.attach_tc("v0", bpf_programs.load("cil_one", SCHED_CLS, 9))
        for _ in range(3):
            assert names(watcher, inode, index, time.monotonic_ns())[0] == ["cil_one"]
        assert names(watcher, inode, index, time.monotonic_ns())[1] == "what was attached at that moment is not known"

    watched(monkeypatch, work, listens=False)


def test_changes_at_another_interface_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    def work(watcher: ProgramWatcher, inode: int, index: int) -> None:
        bpf_programs.attach_tc("v0", bpf_programs.load("cil_one", SCHED_CLS, 9))
        assert names(watcher, inode, index, time.monotonic_ns())[0] == ["cil_one"]
        dropped = time.monotonic_ns()
        bpf_programs.attach_xdp("v1", bpf_programs.load("xdp", XDP, 9))
        assert names(watcher, inode, index, dropped) == (["cil_one"], "")

    watched(monkeypatch, work)


def test_a_change_of_tcx_is_not_announced_but_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    def work(watcher: ProgramWatcher, inode: int, index: int) -> None:
        stays = bpf_programs.load("cil_one", SCHED_CLS, 9, attach_type=TCX_INGRESS)
        try:
            link = bpf_programs.attach_tcx("v0", stays)
        except OSError as e:
            pytest.skip(f"no tcx here: {e}")
        assert names(watcher, inode, index, time.monotonic_ns())[0] == ["cil_one"]
        assert names(watcher, inode, index, time.monotonic_ns()) == (["cil_one"], "")
        os.close(bpf_programs.attach_tcx("v0", bpf_programs.load("other", SCHED_CLS, 9, attach_type=TCX_INGRESS)))
        assert names(watcher, inode, index, time.monotonic_ns()) == (["cil_one"], UNCERTAIN), "the same programs, changed twice"
        assert names(watcher, inode, index, time.monotonic_ns()) == (["cil_one"], "")
        os.close(link)
        assert names(watcher, inode, index, time.monotonic_ns())[0] == ["cil_one"]
        assert names(watcher, inode, index, time.monotonic_ns()) == ([], "none was attached there")

    watched(monkeypatch, work)


def test_all_of_a_namespace_is_not_read_for_each_drop(monkeypatch: pytest.MonkeyPatch) -> None:
    def work(watcher: ProgramWatcher, inode: int, index: int) -> None:
        bpf_programs.attach_tc("v0", bpf_programs.load("cil_one", SCHED_CLS, 9))
        bpf_programs.attach_xdp("v0", bpf_programs.load("xdp", XDP, 9))
        names(watcher, inode, index, time.monotonic_ns())
        monkeypatch.setattr(attached_programs, "read", None)
        for _ in range(3):
            assert names(watcher, inode, index, time.monotonic_ns()) == (["cil_one"], "")
            now = time.monotonic_ns()
            assert [each.name for each in watcher.periods(inode, index, AttachPoint.XDP, now)[-1].programs] == ["xdp"]

    watched(monkeypatch, work)


def test_a_reading_that_fails_does_not_hide_a_change(monkeypatch: pytest.MonkeyPatch) -> None:
    def work(watcher: ProgramWatcher, inode: int, index: int) -> None:
        stays = bpf_programs.load("cil_one", SCHED_CLS, 9)
        bpf_programs.attach_tc("v0", stays)
        assert names(watcher, inode, index, time.monotonic_ns())[0] == ["cil_one"]
        read = attached_programs.read

        def refused(catalog: ProgramCatalog) -> dict[Place, Attached]:
            raise OSError("refused")

        with watcher._lock:
            bpf_programs.detach_tc("v0")
            dropped = time.monotonic_ns()
            bpf_programs.attach_tc("v0", stays)
            monkeypatch.setattr(attached_programs, "read", refused)
            assert names(watcher, inode, index, dropped) == (["cil_one"], UNCERTAIN)
            monkeypatch.setattr(attached_programs, "read", read)
            assert names(watcher, inode, index, dropped) == (["cil_one"], UNCERTAIN)

    watched(monkeypatch, work)


def test_whether_a_program_is_attached_when_a_run_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    def work(watcher: ProgramWatcher, inode: int, index: int) -> None:
        assert not is_any_attached()
        bpf_programs.attach_tc("v0", bpf_programs.load("cil_one", SCHED_CLS, 9))
        assert is_any_attached()
        bpf_programs.detach_tc("v0")
        assert not is_any_attached()

    watched(monkeypatch, work)


@pytest.mark.parametrize("is_expecting", [False, True])
def test_a_program_that_comes_later_is_said_once(monkeypatch: pytest.MonkeyPatch, is_expecting: bool) -> None:
    said: list[str] = []
    monkeypatch.setattr("tracer.kernel.program_watcher.user_warnings.add", said.append)

    def work(watcher: ProgramWatcher, inode: int, index: int) -> None:
        with ProgramWatcher(listens=False, is_expecting=is_expecting) as late:
            assert not said
            bpf_programs.attach_tc("v0", bpf_programs.load("cil_one", SCHED_CLS, 9))
            names(late, inode, index, time.monotonic_ns())
            names(late, inode, index, time.monotonic_ns())

    watched(monkeypatch, work)
    assert said == ([] if is_expecting else [program_watcher.LATE])


def test_the_thread_ends_at_once() -> None:
    began = time.monotonic()
    ProgramWatcher().close()
    assert time.monotonic() - began < 5


def test_a_namespace_that_does_not_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    def work(watcher: ProgramWatcher, inode: int, index: int) -> None:
        assert watcher.periods(1, index, AttachPoint.XDP, time.monotonic_ns()) == ()

    watched(monkeypatch, work)


def test_nothing_is_attached(monkeypatch: pytest.MonkeyPatch) -> None:
    def work(watcher: ProgramWatcher, inode: int, index: int) -> None:
        assert names(watcher, inode, index, time.monotonic_ns()) == ([], "none was attached there")

    watched(monkeypatch, work)


def test_the_oldest_periods_are_left_out() -> None:
    history = program_history.ProgramHistory(Attached((AttachedProgram("tc", 1),)), 0)
    for n in range(2, 100):
        history.last = n * 10 - 5
        history.change(Attached((AttachedProgram("tc", n),)), n * 10)
    history.last = 1000
    found = history.periods(995)
    assert len(found) == program_history.PERIODS_KEPT and found[-1] == ProgramPeriod(990, 0, (AttachedProgram("tc", 99),))
    assert found[0].since == 990 - 10 * (program_history.PERIODS_KEPT - 1)


def test_namespaces_and_places_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program_watcher, "NAMESPACES_KEPT", 4)
    monkeypatch.setattr(program_watcher, "PLACES_KEPT", 8)
    monkeypatch.setattr(program_watcher, "_named", list)
    place = {(2, AttachPoint.XDP): Attached((AttachedProgram("XDP generic", 7),))}
    monkeypatch.setattr("tracer.node.netns.inside_inode", lambda inode, own, work: place)
    with ProgramWatcher(listens=False) as watcher:
        for inode in range(20):
            assert watcher.periods(inode, 2, AttachPoint.XDP, 5)[-1].programs == (AttachedProgram("XDP generic", 7),)
        assert (len(watcher._namespaces), len(watcher._places)) == (4, 8)
