# SPDX-License-Identifier: Apache-2.0
"""The workers, which make and read one hostile case after another, and the process that watches them.

A case is printed and counted as wrong when it raises an exception that no command handles, takes longer than SECONDS, or takes
more memory than 4 times its file plus 256 MB. This code is not in `__main__`: the workers are spawned, and a spawned process
does not import the `__main__` of a package.
"""

from __future__ import annotations

import contextlib
import gc
import io
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.queues import SimpleQueue
from pathlib import Path
from types import FrameType
from typing import Any

from tests.fuzz.bases import bases
from tests.fuzz.files import Maker, sparse
from tests.fuzz.objects import load
from tests.fuzz.reading import read

SECONDS = 20
"""Limit of a case's processor time, s."""
SILENCE = 300.0
"""Time during which a worker uses no processor time, s, after which it counts as hung: it waits for something."""
ROOM, FENCE = 256 << 20, 2 << 30
"""Memory of a case in addition to 4 times its file, and limit of a process's address space; bytes."""
ALONE = 100 << 20
"""Memory of a process that reads nothing, bytes."""
PART = 250
"""A worker collects its garbage after this many cases."""
Case = Callable[[int], int]
"""Runs a case, and returns the size of its file."""


class Hang(BaseException):
    """A case takes too long."""


def _hang(number: int, frame: FrameType | None) -> None:
    raise Hang


def used(name: str) -> int:
    """VmHWM or VmRSS of this process, in bytes."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(name):
            return int(line.split()[1]) << 10
    return 0


def attempt(case: Case, number: int) -> tuple[str, str]:
    """The defect ("" = none), and a text that describes it."""
    Path("/proc/self/clear_refs").write_text("5")
    before = used("VmRSS")
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    size = 0
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            size = case(number)
        wrong, text = "", ""
    except Hang:
        wrong, text = "hang", traceback.format_exc(-6)
    except Exception:
        wrong, text = "crash", traceback.format_exc(-6)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    # Memory that earlier cases left in this process does not count.
    taken = used("VmHWM") - before + ALONE
    if not wrong and taken > 4 * size + ROOM:
        wrong, text = "too-large", f"{taken >> 20} MB for a file of {size} bytes"
    return wrong, text


def cases(directory: Path, seed: int, only: str) -> Case:
    """Returns the function that makes the case of a number, and reads it."""
    maker, path = Maker(bases(directory)), directory / "hostile.k8st"

    def case(number: int) -> int:
        dice = random.Random(f"{seed} {number}")
        if only == "objects" or (not only and dice.random() < 0.3):
            return load(dice)
        content = maker.content(dice)
        sparse(path, content, dice)
        read(path, dice)
        return len(content)

    return case


def work(numbers: range, seed: int, only: str, out: SimpleQueue[Any]) -> None:
    """Runs one worker."""
    resource.setrlimit(resource.RLIMIT_AS, (FENCE, FENCE))
    signal.signal(signal.SIGPROF, _hang)
    sys.stdout = io.StringIO()
    scratch = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(dir=scratch) as name:
        tempfile.tempdir = name
        case = cases(Path(name), seed, only)
        for place, number in enumerate(numbers, 1):
            wrong, text = attempt(case, number)
            if wrong:
                out.put((wrong, number, text))
            if place % PART == 0:
                gc.unfreeze()
                gc.collect()
            out.put(("case", number, ""))


class Clock:
    """The processor time of a worker, as the kernel counts it."""

    def __init__(self, pid: int) -> None:
        self._stat = Path(f"/proc/{pid}/stat")
        self._ticks, self._changed = "", time.monotonic()

    def idle(self) -> float:
        """Time since it last used the processor, s."""
        with contextlib.suppress(OSError):
            ticks = " ".join(self._stat.read_text().rpartition(")")[2].split()[11:13])
            if ticks != self._ticks:
                self._ticks, self._changed = ticks, time.monotonic()
        return time.monotonic() - self._changed


def run(first: int, count: int, seconds: float, seed: int, workers: int, only: str) -> Counter[str]:
    """Runs the cases. seconds: limit of time, 0 = no limit."""
    found: Counter[str] = Counter()
    # Spawned, not forked: after a fork of a process with threads, a lock of another thread may stay locked for ever.
    fresh = get_context("spawn")
    out = fresh.SimpleQueue()
    each = -(-count // workers)
    running = [
        fresh.Process(target=work, args=(range(at, min(at + each, first + count)), seed, only, out), daemon=True)
        for at in range(first, first + count, each)
    ]
    for one in running:
        one.start()
    began = time.monotonic()
    clocks = [Clock(one.pid or 0) for one in running]
    while any(one.is_alive() for one in running) or not out.empty():
        if out.empty():
            time.sleep(0.05)
            waiting = sum(clock.idle() > SILENCE for clock, one in zip(clocks, running, strict=True) if one.is_alive())
            if waiting:
                found["hang"] += waiting
                print(f"{waiting} workers have used no processor time for {SILENCE:.0f} s.", flush=True)
                break
            if seconds and time.monotonic() - began > seconds:
                break
            continue
        what, number, text = out.get()
        if what == "case":
            found["cases"] += 1
        else:
            found[what] += 1
            print(f"case {number} of seed {seed}: {what}\n{text}", flush=True)
        if what == "case" and found["cases"] % 10_000 == 0:
            print(f"{found['cases']} cases, {time.monotonic() - began:.0f} s", flush=True)
    for one in running:
        one.kill()
        one.join()
        found["crash"] += one.exitcode not in (0, -signal.SIGKILL)
    return found
