# SPDX-License-Identifier: Apache-2.0
"""The compared tools, each as a context manager: inside the block the tool is attached and runs."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tracer.kernel.probes import PROBES, TRACEPOINT

OTHER_PORT = 9
"""A port that the measured traffic does not have."""
SCRATCH = Path("/dev/shm")
"""A directory in memory: no file system is measured."""
READY_SECONDS = 120.0
"""Limit of a tool's start, s: pwru reads all of BTF first, which takes long on an emulated CPU."""


class ToolFailed(Exception):
    """A tool did not become ready, or ended by itself."""


@dataclass
class Running:
    """A running tool. command: what was started, described or as typed. report: the tool's own figures, after its end."""

    command: str
    process: subprocess.Popen[Any] | None = None
    report: dict[str, Any] = field(default_factory=dict)

    def check(self) -> None:
        """Raises ToolFailed unless the tool still runs."""
        if self.process and self.process.poll() is not None:
            raise ToolFailed(f"{self.command}: ended by itself with status {self.process.returncode}")

    @property
    def cpu_seconds(self) -> float:
        """CPU time of its threads so far, s."""
        if not self.process:
            return 0.0
        threads = Path(f"/proc/{self.process.pid}/task").glob("*/schedstat")
        return sum(int(t.read_text().split()[0]) for t in threads) / 1e9


Starter = Callable[[], AbstractContextManager[Running]]


@contextmanager
def nothing() -> Iterator[Running]:
    """No tool: the base of the comparison."""
    yield Running("untraced")


class Tracer:
    """k8snet-trace in its own process (bench/worker.py); its probes are on only inside the blocks of on()."""

    def __init__(self, way: str) -> None:
        """way: "" = the tracer's choice, "no-rules" = without rule hits, "kprobe" = as on a kernel without fentry."""
        file = SCRATCH / f"bench-events-{way or 'fentry'}"
        command = [sys.executable, "-m", "bench.worker", way, str(file)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._way = way
        self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            raise ToolFailed(f"the tracer ended by itself with status {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def ask(self, command: str) -> dict[str, Any]:
        """Sends one command of bench/worker.py, and returns the answer."""
        assert self._process.stdin
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()
        return self._answer()

    @contextmanager
    def on(self, command: str) -> Iterator[Running]:
        """command: "port N" or "everything"."""
        running = Running(f"Session, filter: {command}" + (f", only={self._way!r}" if self._way else ""), self._process)
        running.report = self.ask(command)
        try:
            yield running
        finally:
            running.report |= self.ask("off")

    def close(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait()


@contextmanager
def _command(words: Sequence[str], ready: str, figures: str) -> Iterator[Running]:
    """A command that writes the text `ready` to stderr when attached. figures: pattern of NUMBER, NAME in its stderr."""
    log = SCRATCH / "bench-stderr"
    with log.open("wb") as stderr:
        process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=stderr)
    running = Running(" ".join(words), process)
    deadline = time.monotonic() + READY_SECONDS
    try:
        while ready not in log.read_text(errors="replace"):
            running.check()
            if time.monotonic() > deadline:
                raise ToolFailed(f"{running.command}: not ready after {READY_SECONDS:.0f} s")
            time.sleep(0.2)
        yield running
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        running.report = {m[2]: int(m[1]) for m in re.finditer(figures, log.read_text(errors="replace"))}


def tcpdump(*arguments: str) -> Starter:
    """tcpdump -n -i any ARGUMENTS; reports the packets it captured and those the kernel dropped."""
    words = ("tcpdump", "-n", "-i", "any", *arguments)
    return lambda: _command(words, "listening on", r"(\d+) (packets \w+ by \w+|packets captured)")


def pwru(*arguments: str) -> Starter:
    """pwru, with its lines written to a file; reports their number."""
    lines = SCRATCH / "bench-pwru"

    @contextmanager
    def start() -> Iterator[Running]:
        words = ("pwru", "--output-file", str(lines), *arguments)
        with _command(words, "Listening for events", r"(\d+)(\0)") as running:
            yield running
        with lines.open("rb") as file:
            running.report["lines"] = max(0, sum(1 for _ in file) - 1)

    return start


def our_functions() -> str:
    """pwru's expression for the functions with a probe of the tracer, without those for verbose output."""
    names = {s for p in PROBES if p.at != TRACEPOINT and not p.verbose for s in p.symbols}
    return f"^({'|'.join(sorted(names))})$"


def versions() -> dict[str, str]:
    """The versions of the packages with the measured programs."""
    names = ("tcpdump", "pwru", "python3-bpfcc", "libbpfcc", "python3-numpy", "iptables")
    found = subprocess.run(["dpkg-query", "-W", *names], capture_output=True, text=True, check=False).stdout
    return dict(line.split("\t", 1) for line in found.splitlines())
