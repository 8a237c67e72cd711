# SPDX-License-Identifier: Apache-2.0
"""Files of another user beside a capture, with and without the kernel's protection of shared directories (fs.protected_*)."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import captures
from tests.support.captures import read
from tests.support.nobody import NOBODY
from tests.unit.capture.replay.test_planted_journals import plant, with_super
from tests.unit.capture.replay.test_planted_journals import precious as precious  # a fixture
from tests.unit.capture.replay.test_planted_journals import shared as shared  # a fixture
from tracer.capture.record.capture_files import SIDE_SUFFIXES, CaptureFiles, RotationLimits
from tracer.errors import OutputNotWritten

SETTINGS = ("protected_symlinks", "protected_hardlinks", "protected_fifos", "protected_regular")


@pytest.fixture(params=["0", "1"], ids=["unprotected", "protected"], autouse=True)
def protection(request: pytest.FixtureRequest) -> Iterator[None]:
    """Sets fs.protected_* of this virtual machine, which is discarded after the tests."""
    paths = [Path("/proc/sys/fs") / name for name in SETTINGS]
    before = [path.read_text() for path in paths]
    for path in paths:
        path.write_text(request.param)
    yield
    for path, value in zip(paths, before, strict=True):
        path.write_text(value)


def as_nobody(work: object) -> int:
    """Runs `work` as another user; returns 0, or the number of its OSError."""
    child = os.fork()
    if not child:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        try:
            work()  # type: ignore[operator]
            os._exit(0)
        except OSError as e:
            os._exit(e.errno or 255)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.parametrize("suffix", SIDE_SUFFIXES)
def test_the_writer_does_not_use_planted_files(shared: Path, precious: Path, suffix: str) -> None:
    path = shared / "x.k8st"
    beside = path.with_name(path.name + suffix)
    for work in (
        lambda: beside.write_bytes(with_super(precious)),
        lambda: beside.symlink_to(precious),
        lambda: os.mkfifo(beside),
        lambda: beside.mkdir(),
    ):
        assert as_nobody(work) == 0
        with pytest.raises(OutputNotWritten, match="is there already"):
            CaptureFiles(path)
        assert not path.exists() and precious.read_text() == "precious"
        beside.unlink() if beside.is_symlink() or not beside.is_dir() else beside.rmdir()
    assert as_nobody(lambda: path.symlink_to(precious.with_name("new"))) == 0
    with pytest.raises(OutputNotWritten):
        CaptureFiles(path)
    path.unlink()
    files = CaptureFiles(path, RotationLimits(ring=200_000))
    files.describe({"layout": {}, "ring": 0})
    for number in range(1, 6):
        files.insert([(number, "note", "", b'"so"')], None)
        assert as_nobody(lambda: beside.unlink()) in (errno.EPERM, errno.EACCES)
        assert as_nobody(lambda: beside.rename(shared / "away")) in (errno.EPERM, errno.EACCES)
        assert not plant(beside, with_super(precious))
        assert not plant(path, b"x")
    files.close()
    assert precious.read_text() == "precious" and [p.name for p in shared.iterdir()] == ["x.k8st"]


def test_the_reader_ignores_planted_journals(shared: Path, precious: Path) -> None:
    path = captures.capture(shared / "x.k8st").path
    before = read(path)
    pages = path.stat().st_size // 4096
    for suffix in SIDE_SUFFIXES:
        assert plant(path.with_name(path.name + suffix), with_super(precious, pages))
    assert read(path) == before
    # The same when the journal belongs to the same user, as in an archive that was received.
    for suffix in SIDE_SUFFIXES:
        os.chown(path.with_name(path.name + suffix), 0, 0)
    assert read(path) == before
    assert precious.read_text() == "precious" and len(list(shared.iterdir())) == 3
