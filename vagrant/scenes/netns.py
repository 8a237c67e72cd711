# SPDX-License-Identifier: Apache-2.0
"""Run code in a named network namespace, for a short time in this thread or in a forked child.

A namespace has its name of `ip netns`; None is the caller's own (the node's). A socket belongs to the namespace in which it was
made, so `entered()` is enough for a request: it costs microseconds, a process tens of milliseconds on an emulated CPU. `Child`
is for work that runs in parallel with the caller.
"""

from __future__ import annotations

import ctypes
import gc
import os
import pickle
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Generic, NoReturn, TypeVar

RUN_DIR = Path("/var/run/netns")
CLONE_NEWNET = 0x40000000
PR_SET_NAME = 15

T = TypeVar("T")

_libc = ctypes.CDLL(None, use_errno=True)


class ChildFailed(RuntimeError):
    """A forked child ended without a result; the text has its traceback, signal or status."""


def _setns(fd: int) -> None:
    # os.setns exists from Python 3.12 on, the guests start at 3.11
    if _libc.setns(fd, CLONE_NEWNET) != 0:
        err = ctypes.get_errno()
        raise OSError(err, f"setns: {os.strerror(err)}")


@contextmanager
def entered(name: str | None) -> Iterator[None]:
    """Moves this thread (no other) into the namespace `name` within the block. OSError if it does not exist."""
    if name is None:
        yield
        return
    # thread-self, not self: self is the main thread's namespace
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        there = os.open(RUN_DIR / name, os.O_RDONLY | os.O_CLOEXEC)
        try:
            _setns(there)
        finally:
            os.close(there)
        try:
            yield
        finally:
            _setns(home)
    finally:
        os.close(home)


class Child(Generic[T]):
    """A forked process that runs `work()` inside namespace `ns` and returns its result.

    comm: the child's process name (15 bytes are kept). log: a file for its stdout and stderr, else /dev/null.
    keep: file descriptors that it inherits; all others are closed in the child.
    """

    def __init__(
        self,
        ns: str | None,
        work: Callable[[], T],
        *,
        comm: str = "scene",
        log: Path | None = None,
        keep: Iterable[int] = (),
    ) -> None:
        self._pipe, theirs = os.pipe()
        # buffered output must not be printed by both processes
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            _run_child(ns, work, comm, log, {*keep, theirs}, theirs)
        os.close(theirs)

    def result(self, timeout: float | None = None) -> T:
        """The result of `work()`. Waits up to `timeout` seconds. Raises TimeoutError or ChildFailed."""
        deadline = None if timeout is None else time.monotonic() + timeout
        data = bytearray()
        while True:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not select.select([self._pipe], [], [], left)[0]:
                raise TimeoutError(f"child {self.pid} still runs after {timeout} s")
            piece = os.read(self._pipe, 65536)
            if not piece:
                break
            data += piece
        os.close(self._pipe)
        _, status = os.waitpid(self.pid, 0)
        if not data:
            raise ChildFailed(f"child {self.pid} left no result, wait status {status}")
        ok, value = pickle.loads(bytes(data))
        if not ok:
            raise ChildFailed(str(value))
        result: T = value
        return result

    def kill(self) -> None:
        """End the child at once. Its result is lost. Do not call it after result()."""
        os.close(self._pipe)
        # Node.down() may have ended it already
        with suppress(ProcessLookupError, ChildProcessError):
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)


def _run_child(ns: str | None, work: Callable[[], T], comm: str, log: Path | None, keep: set[int], pipe: int) -> NoReturn:
    """Runs the child from start to end: its result, or its traceback, goes to `pipe`."""
    status = 1
    try:
        # garbage of the caller that owns descriptors must not close later descriptors with the same numbers
        gc.freeze()
        # An open probe or ring buffer of the caller must not stay open here after the caller closed it.
        edges = [2, *sorted(keep), os.sysconf("SC_OPEN_MAX")]
        for low, high in pairwise(edges):
            os.closerange(low + 1, high)
        for sig in (signal.SIGINT, signal.SIGTERM):
            signal.signal(sig, signal.SIG_DFL)
        target = os.open(log or os.devnull, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(target, 1)
        os.dup2(target, 2)
        _libc.prctl(PR_SET_NAME, comm.encode()[:15], 0, 0, 0)
        try:
            with entered(ns):
                answer = pickle.dumps((True, work()))
            status = 0
        except Exception:
            answer = pickle.dumps((False, traceback.format_exc()))
        view = memoryview(answer)
        while view:
            view = view[os.write(pipe, view) :]
    finally:
        os._exit(status)
