# SPDX-License-Identifier: Apache-2.0
"""Files of another user beside a capture: neither the writer nor the reader lets SQLite follow them."""

from __future__ import annotations

import os
import sqlite3
import stat
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import captures
from tests.support.captures import read
from tests.support.nobody import NOBODY
from tracer.capture.format import sqlite_journal
from tracer.capture.record.capture_files import SIDE_SUFFIXES, CaptureFiles, RotationLimits
from tracer.errors import OutputNotWritten

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="files of two users need root")


def with_super(name: Path, pages: int = 5) -> bytes:
    """A hot journal that names a super-journal: SQLite removes the super-journal after it has played this journal.

    pages: number of pages of the database.
    """
    text = str(name).encode()
    head = sqlite_journal.MAGIC + struct.pack(">IIIII", 0, 0, pages, 512, 4096)
    return (
        head.ljust(512, b"\0") + struct.pack(">I", 0) + text + struct.pack(">II", len(text), sum(text)) + sqlite_journal.MAGIC
    )


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    """A file that the attacker wants to delete."""
    place = tmp_path / "roots"
    place.mkdir()
    file = place / "precious"
    file.write_text("precious")
    return file


@pytest.fixture
def shared() -> Iterator[Path]:
    """A directory with the mode of /tmp. Not below tmp_path: any other run of pytest closes its parents to other users."""
    with tempfile.TemporaryDirectory(prefix="k8snet-shared-") as top:
        Path(top).chmod(0o755)
        place = Path(top) / "tmp"
        place.mkdir()
        place.chmod(0o1777)
        yield place


def plant(path: Path, content: bytes, owner: int = NOBODY) -> bool:
    """Writes the file as that user, in a separate process; returns whether it was possible."""
    child = os.fork()
    if not child:
        try:
            os.setgroups([])
            os.setgid(owner)
            os.setuid(owner)
            fd = os.open(path, os.O_CREAT | os.O_WRONLY, 0o666)
            os.write(fd, content)
            os._exit(0)
        except OSError:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def meta() -> dict[str, object]:
    return {"layout": {}, "ring": 0}


def test_the_attack_is_real(tmp_path: Path, precious: Path) -> None:
    """SQLite itself deletes the file."""
    path = captures.capture(tmp_path / "a.k8st").path
    path.with_name("a.k8st-journal").write_bytes(with_super(precious, path.stat().st_size // 4096))
    with sqlite3.connect(path) as connection:
        connection.execute("SELECT count(*) FROM records").fetchone()
    assert not precious.exists()


def test_a_capture_with_a_planted_journal_deletes_nothing(tmp_path: Path, precious: Path) -> None:
    path = captures.capture(tmp_path / "a.k8st").path
    before = read(path)
    beside = path.with_name("a.k8st-journal")
    beside.write_bytes(with_super(precious, path.stat().st_size // 4096))
    assert read(path) == before
    assert precious.exists() and beside.exists()
    # A write-ahead log is not read either, and no file is left beside the capture.
    beside.unlink()
    path.with_name("a.k8st-wal").write_bytes(b"\x37\x7f\x06\x82" + b"\1" * 100)
    assert read(path) == before
    assert {p.name for p in tmp_path.iterdir()} == {"a.k8st", "a.k8st-wal", "roots"}


@as_root
@pytest.mark.parametrize("suffix", SIDE_SUFFIXES)
def test_no_capture_is_written_beside_an_existing_side_file(shared: Path, precious: Path, suffix: str) -> None:
    path = shared / "x.k8st"
    assert plant(path.with_name(path.name + suffix), with_super(precious))
    with pytest.raises(OutputNotWritten, match=f"x.k8st{suffix} is there already"):
        CaptureFiles(path)
    assert precious.exists() and not path.exists()


@as_root
@pytest.mark.parametrize("suffix", SIDE_SUFFIXES)
def test_links_beside_a_capture_are_not_followed(shared: Path, precious: Path, suffix: str) -> None:
    path = shared / "x.k8st"
    path.with_name(path.name + suffix).symlink_to(precious)
    with pytest.raises(OutputNotWritten, match="is there already"):
        CaptureFiles(path)
    assert precious.read_text() == "precious" and not path.exists()
    planted = shared / "y.k8st"
    planted.symlink_to(precious.with_name("new"))
    with pytest.raises(OutputNotWritten, match="File exists"):
        CaptureFiles(planted)
    assert {p.name for p in precious.parent.iterdir()} == {"precious"}


@as_root
@pytest.mark.parametrize("suffix", SIDE_SUFFIXES)
def test_nothing_can_be_planted_while_a_capture_is_written(shared: Path, precious: Path, suffix: str) -> None:
    """Between two transactions no lock is held, but the file names that SQLite looks for are occupied."""
    path = shared / "x.k8st"
    files = CaptureFiles(path, RotationLimits(rotate=1))
    files.describe(dict(meta()))
    for turn in range(1, 4):
        files.insert([(turn, "note", "", b'"so"')], None)
        beside = files.names[-1].with_name(files.names[-1].name + suffix)
        assert not plant(beside, with_super(precious))
        assert stat.S_IMODE(beside.stat().st_mode) == 0o600 and not beside.stat().st_size
        beside_old = [p.with_name(p.name + s) for p in files.names[:-1] for s in SIDE_SUFFIXES]
        assert not any(p.exists() for p in beside_old)
    files.close()
    assert precious.exists() and sorted(p.name for p in shared.iterdir()) == ["x.2.k8st", "x.3.k8st", "x.k8st"]


@as_root
def test_a_journal_of_another_user_is_not_played(shared: Path, precious: Path) -> None:
    """The run has ended, so the file names are free again."""
    path = captures.capture(shared / "x.k8st").path
    before = read(path)
    page = path.read_bytes()[4096:8192]
    changed = bytes(reversed(page))
    total = sum(changed[at] for at in range(4096 - 200, 0, -200))
    undone = struct.pack(">I", 2) + changed + struct.pack(">I", total)
    head = sqlite_journal.MAGIC + struct.pack(">IIIII", 1, 0, path.stat().st_size // 4096, 512, 4096)
    assert plant(path.with_name("x.k8st-journal"), head.ljust(512, b"\0") + undone)
    assert read(path) == before
    # SQLite would play this journal if it belonged to the same user.
    os.chown(path.with_name("x.k8st-journal"), 0, 0)
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as connection, pytest.raises(sqlite3.Error):
        connection.execute("SELECT count(*) FROM meta").fetchone()


@as_root
@pytest.mark.parametrize(
    ("mode", "owner"), [(0o777, 0), (0o775, 0), (0o755, NOBODY), (0o700, NOBODY), (0o1777, NOBODY)], ids=oct
)
def test_a_directory_that_other_users_control_is_refused(tmp_path: Path, mode: int, owner: int) -> None:
    place = tmp_path / "others"
    below = place / "below"
    below.mkdir(parents=True)
    place.chmod(mode)
    os.chown(place, owner, 12345)
    for path in (place / "x.k8st", below / "x.k8st"):
        with pytest.raises(OutputNotWritten, match=r"others may .* choose a directory"):
            CaptureFiles(path)
        assert not path.exists()


@as_root
def test_the_user_of_sudo_records_in_the_home_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    home.mkdir()
    os.chown(home, NOBODY, NOBODY)
    monkeypatch.setenv("SUDO_UID", str(NOBODY))
    CaptureFiles(home / "x.k8st").close()
    monkeypatch.setenv("SUDO_UID", "nonsense")
    with pytest.raises(OutputNotWritten):
        CaptureFiles(home / "y.k8st")


@as_root
def test_a_link_of_another_user_in_the_path_is_refused(shared: Path, tmp_path: Path) -> None:
    (tmp_path / "goal").mkdir()
    link = shared / "link"
    link.symlink_to(tmp_path / "goal")
    os.lchown(link, NOBODY, NOBODY)
    with pytest.raises(OutputNotWritten, match="others may"):
        CaptureFiles(link / "x.k8st")
    os.lchown(link, 0, 0)
    CaptureFiles(link / "x.k8st").close()
    assert (tmp_path / "goal/x.k8st").exists()
