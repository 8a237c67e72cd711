# SPDX-License-Identifier: Apache-2.0
"""Files of other users: the reader does not wait, does not read without a limit, and does not leave the root."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tracer.util import untrusted_file
from tracer.util.untrusted_file import UnsafeFile


@pytest.fixture
def root(tmp_path: Path) -> Iterator[int]:
    """A directory that a process sees as /; beside it there is a secret of the host."""
    (tmp_path / "secret").write_text("the host's")
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/secret").write_text("the host's")
    inside = tmp_path / "root"
    (inside / "etc").mkdir(parents=True)
    (inside / "etc/conf").write_text("its own")
    fd = untrusted_file.directory(inside)
    yield fd
    os.close(fd)


def test_a_regular_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("text")
    (tmp_path / "link").symlink_to("a")
    assert untrusted_file.read(tmp_path / "a") == untrusted_file.read(tmp_path / "link") == b"text"
    assert untrusted_file.text(tmp_path / "a") == "text"
    assert untrusted_file.read(tmp_path / "a", owners={os.geteuid()}) == b"text"


def test_fifos_devices_and_directories_are_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "zero").symlink_to("/dev/zero")
    for path in (tmp_path / "fifo", tmp_path / "zero", tmp_path, "/dev/null"):
        with pytest.raises(UnsafeFile, match="it is not a regular file"):
            untrusted_file.read(path)
    assert untrusted_file.read("/proc/kmsg") == b"", "reading it would take its messages from other readers"


def test_a_file_above_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "large"
    path.write_bytes(b"x" * 11)
    assert len(untrusted_file.read(path, 11)) == 11 == len(untrusted_file.read_named(path, 11))
    for read in (untrusted_file.read, untrusted_file.read_named):
        with pytest.raises(UnsafeFile, match="it has more than 10 bytes"):
            read(path, 10)
    with path.open("ab") as file:
        file.truncate(1 << 40)
    for read in (untrusted_file.read, untrusted_file.read_named):
        with pytest.raises(UnsafeFile, match="it has more than"):
            read(path, 1000)
    with pytest.raises(UnsafeFile):
        untrusted_file.read_named("/dev/zero", 1000)


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_a_file_that_others_may_write_to(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "a"
    path.write_text("text")
    path.chmod(mode)
    with pytest.raises(UnsafeFile, match="other users may write to it"):
        untrusted_file.read(path, owners=untrusted_file.ours())
    with pytest.raises(UnsafeFile, match="belongs to user"):
        untrusted_file.read(path, owners={12345})


def test_a_file_of_another_user() -> None:
    with pytest.raises(UnsafeFile, match="it belongs to user 0"):
        untrusted_file.read("/etc/passwd", owners={4242})


@pytest.mark.parametrize(
    ("path", "target"),
    [
        ("/etc/conf", ""),
        ("etc//./conf", ""),
        ("/../../etc/conf", ""),
        ("/link", "/etc/conf"),
        ("/link", "etc/../../../etc/conf"),
        ("/etc/link", "conf"),
        ("/etc/link", "../etc/conf"),
        ("/deep/conf", "/etc"),
    ],
)
def test_a_path_inside_a_root(tmp_path: Path, root: int, path: str, target: str) -> None:
    if target:
        (tmp_path / "root" / path.split("/conf")[0].lstrip("/")).symlink_to(target)
    assert untrusted_file.read(path, root=root) == b"its own"


@pytest.mark.parametrize("target", ["../secret", "/secret", "../../secret", "/../etc/secret", "etc/../../etc/secret", "{host}"])
def test_nothing_leads_out_of_a_root(tmp_path: Path, root: int, target: str) -> None:
    (tmp_path / "root/link").symlink_to(target.format(host=tmp_path / "secret"))
    for path in ("/link", "../secret", str(tmp_path / "secret")):
        with pytest.raises(FileNotFoundError):
            untrusted_file.read(path, root=root)


def test_links_of_proc_are_text(tmp_path: Path) -> None:
    """/proc/self/root and /proc/self/fd leave any root when they are followed."""
    with (tmp_path / "secret").open("w") as file:
        proc = untrusted_file.directory("/proc")
        try:
            for path in (f"/self/fd/{file.fileno()}", "/self/root/etc/passwd", "/self/cwd/README.md", "/self/exe"):
                with pytest.raises(OSError):
                    untrusted_file.read(path, root=proc)
        finally:
            os.close(proc)


def test_links_without_end(tmp_path: Path, root: int) -> None:
    (tmp_path / "root/a").symlink_to("b")
    (tmp_path / "root/b").symlink_to("/a")
    with pytest.raises(OSError, match="Too many levels"):
        untrusted_file.read("/a", root=root)
    (tmp_path / "root/down").symlink_to("/" + "etc/../" * 500 + "etc/conf")
    assert untrusted_file.read("/down", root=root) == b"its own"
    at = os.dup(root)
    for _ in range(untrusted_file.DEPTH + 10):
        os.mkdir("d", dir_fd=at)
        at, before = os.open("d", os.O_PATH, dir_fd=at), at
        os.close(before)
    os.close(at)
    with pytest.raises(OSError, match="too long"):
        untrusted_file.read("d/" * (untrusted_file.DEPTH + 5), root=root)


def test_no_descriptor_is_left(tmp_path: Path, root: int) -> None:
    before = len(os.listdir("/proc/self/fd"))
    (tmp_path / "root/a").symlink_to("/a")
    for path in ("/etc/conf", "/a", "/etc", "/nothing", "/etc/conf/nothing"):
        with suppress(OSError):
            untrusted_file.read(path, root=root)
    assert len(os.listdir("/proc/self/fd")) == before
