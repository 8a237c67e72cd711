# SPDX-License-Identifier: Apache-2.0
"""Reads a file that somebody else may have made: a user, a container, another program.

Such a name can lead to a FIFO (opening it waits for ever), to a device (/dev/zero has no end, others act when they are opened),
to a file of /proc or tracefs that loses what is read from it, or by a link out of the container. So the name is first opened
with O_PATH, which has no effect; what it leads to is looked at; and only a regular file of a bounded size is read, through the
same descriptor.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

MOST = 1_000_000
"""Bytes of a file, if nothing else is said."""
LINKS = 40
"""Symbolic links on one way, as the kernel allows."""
DEPTH = 200
"""Directories on one way: each is a descriptor while it is gone."""

_LOOK = os.O_PATH | os.O_CLOEXEC


class UnsafeFile(OSError):
    """A file that is there and is not read. strerror: why, to follow the file's name."""

    def __init__(self, why: str, number: int = errno.EPERM) -> None:
        super().__init__(number, why)


def ours() -> frozenset[int]:
    """Who may have written what this process trusts: root and its own user."""
    return frozenset({0, os.geteuid()})


def read(
    path: str | os.PathLike[str], most: int = MOST, owners: Collection[int] | None = None, root: int | None = None
) -> bytes:
    """What is in a regular file. Raises OSError, of kind UnsafeFile when it is there and is not read.

    most: bytes that it may have. owners: user ids; the file must be of one of them, and nobody else may be able to write to it.
    root: descriptor of a directory; then the path and all its links are followed as by a process that sees it as /.
    """
    return _read(path, most, owners, root)[0]


def read_with_owner(path: str | os.PathLike[str], most: int, owners: Collection[int]) -> tuple[bytes, int]:
    """As `read`, and the id of the user whose file it is."""
    return _read(path, most, owners, None)


def _read(path: str | os.PathLike[str], most: int, owners: Collection[int] | None, root: int | None) -> tuple[bytes, int]:
    with _looked_at(path, root) as fd:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise UnsafeFile("it is not a regular file")
        if owners is not None:
            check_owner(found, owners)
        if found.st_size > most:
            raise UnsafeFile(f"it has more than {most} bytes", errno.EFBIG)
        if not found.st_size:  # files of /proc and tracefs, too: some of them lose what is read
            return b"", found.st_uid
        # Not the path again: another file may be there by now.
        with open(f"/proc/self/fd/{fd}", "rb", opener=_not_waiting) as file:
            return _bounded(file.read(most + 1), most), found.st_uid


def check_owner(found: os.stat_result, owners: Collection[int]) -> None:
    """Raises UnsafeFile unless the file is of one of these users and nobody else may write to it."""
    if found.st_uid not in owners:
        raise UnsafeFile(f"it belongs to user {found.st_uid}")
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise UnsafeFile("other users may write to it (chmod go-w mends that)")


def read_named(path: str | os.PathLike[str], most: int = MOST) -> bytes:
    """What is in a file that the user named on the command line, a pipe as well. Raises OSError."""
    with open(path, "rb") as file:
        return _bounded(file.read(most + 1), most)


def read_at(directory: int, name: str, most: int = MOST) -> bytes:
    """What the kernel writes into one of its own files: `name` below a descriptor of /proc/PID. Raises OSError."""
    with os.fdopen(os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=directory), "rb") as file:
        return _bounded(file.read(most + 1), most)


def directory(path: str | os.PathLike[str], within: int | None = None) -> int:
    """A descriptor of a directory, to look up names in. Raises OSError."""
    return os.open(path, _LOOK | os.O_DIRECTORY, dir_fd=within)


def _bounded(text: bytes, most: int) -> bytes:
    if len(text) > most:
        raise UnsafeFile(f"it has more than {most} bytes", errno.EFBIG)
    return text


def _not_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY)


@contextmanager
def _looked_at(path: str | os.PathLike[str], root: int | None) -> Iterator[int]:
    fd = os.open(path, _LOOK) if root is None else resolve(root, os.fspath(path))
    try:
        yield fd
    finally:
        os.close(fd)


def resolve(root: int, path: str) -> int:
    """An O_PATH descriptor of what a path leads to, for a process that sees `root` as /. Raises OSError.

    Step by step, each link read as text: so "..", links to absolute paths and the links of /proc stay inside. openat2 can do
    the same, but Python has no call for it, and seccomp profiles of older container runtimes refuse it.
    """
    ways, todo, links = [os.dup(root)], path.split("/")[::-1], 0
    try:
        while todo:
            step = todo.pop()
            if step == ".." and len(ways) > 1:
                os.close(ways.pop())
            if step in ("", ".", ".."):
                continue
            fd = os.open(step, _LOOK | os.O_NOFOLLOW, dir_fd=ways[-1])
            if not stat.S_ISLNK(os.fstat(fd).st_mode):
                ways.append(fd)
                if len(ways) > DEPTH:
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
                while len(ways) > 1:
                    os.close(ways.pop())
            todo += target.split("/")[::-1]
        return ways.pop()
    finally:
        for fd in ways:
            os.close(fd)


def text(path: Path, most: int = MOST, owners: Collection[int] | None = None) -> str:
    """As `read`, decoded; ValueError when it is no UTF-8."""
    return read(path, most, owners).decode()
