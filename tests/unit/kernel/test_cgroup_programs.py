# SPDX-License-Identifier: Apache-2.0
"""Programs at cgroups of their own, read from the kernel that runs the tests."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support import bpf_programs
from tests.support.bpf_programs import CGROUP_SKB, SOCK_ADDR
from tracer.kernel import cgroup_programs
from tracer.kernel.attached_programs import ProgramCatalog
from tracer.kernel.bpf_syscall import CGROUP_INET_EGRESS as EGRESS
from tracer.kernel.bpf_syscall import CGROUP_INET_INGRESS as INGRESS
from tracer.kernel.bpf_syscall import CONNECT_TYPES
from tracer.kernel.cgroup_programs import CgroupPrograms
from tracer.model.bpf_program import AttachPoint, ProgramPeriod

NAMES = ("upper", "upper/lower", "other")


@pytest.fixture
def root() -> Iterator[Path]:
    """A cgroup with the cgroups NAMES below it, as if it were the root of the hierarchy."""
    found = cgroup_programs.hierarchy()
    if found is None:
        pytest.skip("no hierarchy of version 2 here")
    top = found / f"k8snet-trace-test-{os.getpid()}"
    try:
        for name in ("", *NAMES):
            (top / name).mkdir()
        os.close(bpf_programs.attach_at(top, bpf_programs.load("probe", CGROUP_SKB, 1, attach_type=EGRESS), EGRESS))
    except OSError as e:
        _remove(top)
        pytest.skip(f"no programs at cgroups here: {e}")
    yield top
    _remove(top)


def _remove(top: Path) -> None:
    for name in (*reversed(NAMES), ""):
        with suppress(OSError):
            (top / name).rmdir()


def attach(path: Path, name: str, attach_type: int) -> int:
    return bpf_programs.attach_at(path, bpf_programs.load(name, CGROUP_SKB, 9, attach_type=attach_type), attach_type)


def there(found: tuple[ProgramPeriod, ...]) -> list[tuple[str, str]]:
    """Names and cgroups of the programs of the newest period."""
    return [(each.name, each.cgroup) for each in found[-1].programs]


def test_programs_of_a_cgroup_and_of_those_above_it(root: Path) -> None:
    links = [attach(root / "upper", "sd_fw_egress", EGRESS), attach(root / "upper/lower", "other_egress", EGRESS)]
    links.append(attach(root / "upper/lower", "lower_ingress", INGRESS))
    inode = (root / "upper/lower").stat().st_ino
    programs = CgroupPrograms(ProgramCatalog(), root)
    found = programs.periods(inode, AttachPoint.CGROUP_EGRESS, time.monotonic_ns())
    assert sorted(there(found)) == [("other_egress", "/upper/lower"), ("sd_fw_egress", "/upper")]
    assert {each.loader for each in found[-1].programs} == {"systemd", ""}
    assert there(programs.periods(inode, AttachPoint.CGROUP_INGRESS, time.monotonic_ns())) == [
        ("lower_ingress", "/upper/lower")
    ]
    upper = (root / "upper").stat().st_ino
    assert there(programs.periods(upper, AttachPoint.CGROUP_EGRESS, time.monotonic_ns())) == [("sd_fw_egress", "/upper")]
    assert there(programs.periods(upper, AttachPoint.CGROUP_INGRESS, time.monotonic_ns())) == []
    for link in links:
        os.close(link)


def test_a_period_lasts_from_one_reading_to_the_next(root: Path) -> None:
    link = attach(root / "upper", "first", EGRESS)
    inode = (root / "upper").stat().st_ino
    programs = CgroupPrograms(ProgramCatalog(), root)
    at = time.monotonic_ns()
    (period,) = programs.periods(inode, AttachPoint.CGROUP_EGRESS, at)
    assert period.since < at and period.until == 0
    second = attach(root / "upper", "second", EGRESS)
    (old, new) = programs.periods(inode, AttachPoint.CGROUP_EGRESS, time.monotonic_ns())
    assert [each.name for each in old.programs] == ["first"] and old.until
    assert sorted(each.name for each in new.programs) == ["first", "second"] and new.until == 0
    os.close(link)
    os.close(second)


def test_a_program_that_comes_later(root: Path) -> None:
    programs = CgroupPrograms(ProgramCatalog(), root)
    inode = (root / "other").stat().st_ino
    assert there(programs.periods(inode, AttachPoint.CGROUP_EGRESS, time.monotonic_ns())) == []
    link = attach(root / "other", "late", EGRESS)
    none, late = programs.periods(inode, AttachPoint.CGROUP_EGRESS, time.monotonic_ns())
    assert not none.programs and none.until < late.since and [each.name for each in late.programs] == ["late"]
    os.close(link)


def test_a_cgroup_that_is_made_later_is_found(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / "other").rmdir()
    link = attach(root, "of_all", EGRESS)
    programs = CgroupPrograms(ProgramCatalog(), root)
    (root / "other").mkdir()
    inode = (root / "other").stat().st_ino
    assert programs.periods(inode, AttachPoint.CGROUP_EGRESS, time.monotonic_ns()) == (), "searches are not repeated at once"
    monkeypatch.setattr(cgroup_programs, "SEARCH_PAUSE_SECONDS", 0)
    at = time.monotonic_ns()
    found = programs.periods(inode, AttachPoint.CGROUP_EGRESS, at)
    assert there(found) == [("of_all", "/")] and found[-1].since > at, "what was attached before is not known"
    os.close(link)


@pytest.mark.parametrize("at_root", [True, False])
@pytest.mark.parametrize("point", [AttachPoint.CONNECT4, AttachPoint.SENDMSG4])
def test_programs_at_connect_are_read_ahead_if_the_root_has_some(root: Path, point: AttachPoint, at_root: bool) -> None:
    kind = CONNECT_TYPES[point]
    program = bpf_programs.load_passing("cil_sock4", SOCK_ADDR, kind)
    link = bpf_programs.attach_at(root if at_root else root / "other", program, kind)
    programs = CgroupPrograms(ProgramCatalog(), root)
    inode, at = (root / "other").stat().st_ino, time.monotonic_ns()
    found = programs.periods(inode, point, at)
    assert there(found) == [("cil_sock4", "/" if at_root else "/other")]
    assert (found[-1].since < at) is at_root and len(found) == 1
    (none,) = programs.periods(inode, AttachPoint.CONNECT6, at)
    assert not none.programs and none.since > at, "it was not read before"
    os.close(link)
    os.close(program)


def test_a_cgroup_that_has_gone(root: Path) -> None:
    programs = CgroupPrograms(ProgramCatalog(), root)
    inode = (root / "other").stat().st_ino
    (root / "other").rmdir()
    assert programs.periods(inode, AttachPoint.CGROUP_EGRESS, time.monotonic_ns()) == ()


def test_it_is_bounded(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroup_programs, "CGROUPS_KEPT", 2)
    programs = CgroupPrograms(ProgramCatalog(), root)
    assert len(programs._cgroups) == 2
    monkeypatch.setattr(cgroup_programs, "HISTORIES_KEPT", 1)
    link = attach(root, "of_all", EGRESS)
    monkeypatch.setattr(cgroup_programs, "CGROUPS_KEPT", 8)
    programs = CgroupPrograms(ProgramCatalog(), root)
    assert len(programs._histories) == 1 and programs._histories.evicted == 3
    assert there(programs.periods((root / "other").stat().st_ino, AttachPoint.CGROUP_EGRESS, time.monotonic_ns())) == [
        ("of_all", "/")
    ], "read again"
    assert programs.periods((root / "other").stat().st_ino, AttachPoint.CGROUP_INGRESS, time.monotonic_ns()) == ()
    os.close(link)


def test_where_there_is_no_hierarchy(tmp_path: Path) -> None:
    for process, text in (("1", "29 23 0:26 / /sys/fs/cgroup rw - cgroup cgroup rw,cpu\n"), ("self", "a - cgroup2 x\n - \n")):
        (tmp_path / process).mkdir()
        (tmp_path / process / "mountinfo").write_text(text)
    assert cgroup_programs.hierarchy(tmp_path) is None
    programs = CgroupPrograms(ProgramCatalog(), tmp_path / "missing")
    assert programs.periods(1, AttachPoint.CGROUP_EGRESS, time.monotonic_ns()) == ()


def test_the_hierarchy_of_the_first_process_comes_first(tmp_path: Path) -> None:
    text = "30 23 0:27 / /sys/fs/cgroup/unified rw shared:9 - cgroup2 cgroup2 rw\n"
    for process in ("1", "self"):
        (tmp_path / process / "root/sys/fs/cgroup/unified").mkdir(parents=True)
        (tmp_path / process / "mountinfo").write_text(text)
    assert cgroup_programs.hierarchy(tmp_path) == tmp_path / "1/root/sys/fs/cgroup/unified"
