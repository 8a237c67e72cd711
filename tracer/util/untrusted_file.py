# SPDX-License-Identifier: Apache-2.0
"""Reads files that others may have made: a user, a container, another program.

Such a path can lead to a FIFO (opening blocks for ever), to a device (/dev/zero has no end, others act when they are opened),
to a file of /proc or tracefs that loses the data that is read, or by a link out of the container. So the path is first opened
with O_PATH, which has no effect; then the type of the file is checked; and only a regular file of limited size is read,
through the same descriptor.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

MOST = 1_000_000
"""Default limit of a file's size, bytes."""
LINKS = 40
"""Largest number of symbolic links in one path, as in the kernel."""
DEPTH = 200
"""Largest number of directories in one path; each needs a descriptor while the path is resolved."""

_PATH_ONLY = os.O_PATH | os.O_CLOEXEC


class UnsafeFile(OSError):
    """A file that exists but is not read. strerror: the reason, as a clause after the file's name."""

    def __init__(self, why: str, number: int = errno.EPERM) -> None:
        super().__init__(number, why)


def ours() -> frozenset[int]:
    """User ids of trusted owners: root and the user of this process."""
    return frozenset({0, os.geteuid()})


def read(
    path: str | os.PathLike[str], most: int = MOST, owners: Collection[int] | None = None, root: int | None = None
) -> bytes:
    """Reads a regular file.

    Args:
        path: Path of the file.
        most: Limit of its size, bytes.
        owners: User ids; the file must belong to one of them and must not be writable by others. None = not checked.
        root: Descriptor of a directory; the path and all its links are resolved with this directory as /.

    Raises:
        UnsafeFile: The file exists but is not read.
        OSError: The file cannot be opened.
    """
    return _read(path, most, owners, root)[0]


def read_with_owner(path: str | os.PathLike[str], most: int, owners: Collection[int]) -> tuple[bytes, int]:
    """As `read`, with the user id of the owner."""
    return _read(path, most, owners, None)


def _read(path: str | os.PathLike[str], most: int, owners: Collection[int] | None, root: int | None) -> tuple[bytes, int]:
    with _located(path, root) as fd:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise UnsafeFile("it is not a regular file")
        if owners is not None:
            check_owner(found, owners)
        if found.st_size > most:
            raise UnsafeFile(f"it has more than {most} bytes", errno.EFBIG)
        if not found.st_size:  # also files of /proc and tracefs; some of them lose the data that is read
            return b"", found.st_uid
        # By descriptor, because the path may lead to another file now.
        with open(f"/proc/self/fd/{fd}", "rb", opener=_nonblocking) as file:
            return _bounded(file.read(most + 1), most), found.st_uid


def check_owner(found: os.stat_result, owners: Collection[int]) -> None:
    """Raises UnsafeFile unless the file belongs to one of these users and is not writable by others."""
    if found.st_uid not in owners:
        raise UnsafeFile(f"it belongs to user {found.st_uid}")
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise UnsafeFile("other users may write to it (chmod go-w mends that)")


def read_named(path: str | os.PathLike[str], most: int = MOST) -> bytes:
    """Reads a file that the user gave on the command line; it may be a pipe.

    Raises:
        OSError: The file cannot be read.
    """
    with open(path, "rb") as file:
        return _bounded(file.read(most + 1), most)


def read_at(directory: int, name: str, most: int = MOST) -> bytes:
    """Reads a file of the kernel: `name` below a descriptor of /proc/PID.

    Raises:
        OSError: The file cannot be read.
    """
    with os.fdopen(os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=directory), "rb") as file:
        return _bounded(file.read(most + 1), most)


def directory(path: str | os.PathLike[str], within: int | None = None) -> int:
    """Opens a directory for looking up names in it.

    Raises:
        OSError: The directory cannot be opened.
    """
    return os.open(path, _PATH_ONLY | os.O_DIRECTORY, dir_fd=within)


def _bounded(text: bytes, most: int) -> bytes:
    if len(text) > most:
        raise UnsafeFile(f"it has more than {most} bytes", errno.EFBIG)
    return text


def _nonblocking(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY)


@contextmanager
def _located(path: str | os.PathLike[str], root: int | None) -> Iterator[int]:
    fd = os.open(path, _PATH_ONLY) if root is None else resolve(root, os.fspath(path))
    try:
        yield fd
    finally:
        os.close(fd)


def resolve(root: int, path: str) -> int:
    """Resolves a path with `root` as / and returns an O_PATH descriptor.

    It resolves one component after another and reads each link as text: so "..", links to absolute paths and the links of
    /proc stay inside. openat2 can do the same, but Python has no call for it, and seccomp profiles of older container runtimes
    refuse it.

    Raises:
        OSError: The path cannot be resolved.
    """
    directories, todo, links = [os.dup(root)], path.split("/")[::-1], 0
    try:
        while todo:
            step = todo.pop()
            if step == ".." and len(directories) > 1:
                os.close(directories.pop())
            if step in ("", ".", ".."):
                continue
            fd = os.open(step, _PATH_ONLY | os.O_NOFOLLOW, dir_fd=directories[-1])
            if not stat.S_ISLNK(os.fstat(fd).st_mode):
                directories.append(fd)
                if len(directories) > DEPTH:
                    raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))
                continue
            try:
                target = os.readlink("", dir_fd=fd)
            finally:
                os.close(fd)
            links += 1
            if links > LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
            if target.startswith("/"):
                while len(directories) > 1:
                    os.close(directories.pop())
            todo += target.split("/")[::-1]
        return directories.pop()
    finally:
        for fd in directories:
            os.close(fd)


def text(path: Path, most: int = MOST, owners: Collection[int] | None = None) -> str:
    """As `read`, decoded; raises ValueError if the file is not UTF-8."""
    return read(path, most, owners).decode()
