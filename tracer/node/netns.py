# SPDX-License-Identifier: Apache-2.0
"""Calls in another network namespace: each in a thread of its own, so that no other thread changes its namespace.

Reading changes nothing: a namespace is entered by a descriptor of an existing file, never by mounting one.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Generic, TypeVar

from tracer.node.namespaces import named_files

CLONE_NEWNET = 0x40000000

T = TypeVar("T")
_libc = ctypes.CDLL(None, use_errno=True)


def _checked(status: int, what: str) -> None:
    if status != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")


class _Call(Generic[T]):
    """A call of `work` in a new thread, after `go` has changed that thread; then the thread ends."""

    def __init__(self, prepare: Callable[[], None], work: Callable[[], T]) -> None:
        self._prepare, self._work = prepare, work
        self._error: BaseException | None = None
        self._result: list[T] = []

    def _run(self) -> None:
        try:
            self._prepare()
            self._result.append(self._work())
        except BaseException as e:
            self._error = e

    def __call__(self) -> T:
        thread = threading.Thread(target=self._run, name="netns", daemon=True)
        thread.start()
        thread.join()
        if self._error:
            raise self._error
        return self._result[0]


def inside(fd: int, work: Callable[[], T]) -> T:
    """Calls `work` in the namespace of a descriptor and returns its result; processes that it starts run there, too.

    Raises:
        OSError: The namespace cannot be entered.
    """
    return _Call(lambda: _checked(_libc.setns(fd, CLONE_NEWNET), "setns"), work)()


def inside_inode(inode: int, own: int, work: Callable[[], T]) -> T:
    """Calls `work` in the namespace with an inode; in this thread if it is the own one.

    Args:
        inode: Inode of the namespace.
        own: Inode of this thread's namespace.
        work: What to call.

    Raises:
        OSError: It cannot be entered or read.
        LookupError: It does not exist any more.
    """
    if inode == own:
        return work()
    fd = open_path(find(inode), inode)
    try:
        return inside(fd, work)
    finally:
        os.close(fd)


@contextmanager
def entered(path: Path) -> Iterator[None]:
    """Moves the calling thread, and no other, to the namespace of a file for the block.

    Raises:
        OSError: The namespace cannot be entered.
    """
    own = current()
    try:
        other = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            # os.setns came with Python 3.12.
            _checked(_libc.setns(other, CLONE_NEWNET), "setns")
        finally:
            os.close(other)
        try:
            yield
        finally:
            _checked(_libc.setns(own, CLONE_NEWNET), "setns")
    finally:
        os.close(own)


def inside_new(work: Callable[[], T]) -> T:
    """Calls `work` in a new, unnamed namespace, which exists as long as an object made in it.

    Raises:
        OSError: The namespace cannot be made.
    """
    return _Call(lambda: _checked(_libc.unshare(CLONE_NEWNET), "unshare"), work)()


def identity(inode: int, number: int) -> int:
    """Identity of a namespace among all since boot. inode: its inode. number: its cookie, 0 = not known."""
    return inode | number << 32


def inode_of(space: int) -> int:
    """The inode in an identity."""
    return space & 0xFFFFFFFF


def apart(prepare: Callable[[], None], work: Callable[[], T]) -> T:
    """Calls `work` in a new thread in this thread's namespace, after `prepare` has changed the new thread."""
    return _Call(prepare, work)()


def current() -> int:
    """A descriptor of this thread's namespace; child processes do not inherit it."""
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def find(inode: int) -> Path:
    """A file of the namespace with this inode.

    Raises:
        LookupError: No name and no process has this namespace.
    """
    paths = [Path("/proc/self/ns/net"), Path("/proc/1/ns/net")]
    paths += named_files()
    paths += [Path(f"/proc/{pid}/ns/net") for pid in os.listdir("/proc") if pid.isdigit()]
    for path in paths:
        with suppress(OSError):
            if path.stat().st_ino == inode:
                return path
    raise LookupError(inode)


def open_path(path: Path, inode: int) -> int:
    """A descriptor of the namespace of a file.

    Raises:
        OSError: The file cannot be opened.
        LookupError: The file now belongs to another namespace.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    if os.fstat(fd).st_ino != inode:
        os.close(fd)
        raise LookupError(inode)
    return fd
