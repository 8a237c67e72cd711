# SPDX-License-Identifier: Apache-2.0
"""Starts the tracer as a user does and lets it kill itself (SIGKILL) at a point of its start, so that no point is missed.

    python3 tests/kernel/kill_points.py EARLY OPTIONS     (as root, in a machine of the lab)

EARLY is a point before the programs are compiled or read from the cache, or "-". The other points are lines on stdin. The
programs are compiled or read once: this process then waits, and for each line a copy of it continues the start up to the point
of that name. stdout reports the result of each point, a line of JSON.

The tracer has no hook for this: its functions are wrapped from outside.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).resolve().parent.parent.parent

NOT_REACHED = 99
"""Exit status of a copy that was ready, or had ended, without reaching its point."""
FEW = 16
"""One of this many functions is watched at points marked `few`."""
IN_COMPILER = 1.0
"""Seconds after which the compiler is at work; compiling takes many times as long."""


@dataclass(frozen=True)
class Point:
    """A function call at which the copy dies.

    Attributes:
        module: Module of the function.
        function: Function or method.
        entered: Die when the call begins, not when it has returned.
        way: Count only calls for this way of attaching; "" = all calls.
        live: Do not die, but continue until killed from outside.
        nth: Number of the call, from 1.
        few: Watch only one in FEW functions of matches and targets, because attaching them takes longest.
    """

    module: str
    function: str
    entered: bool = False
    way: str = ""
    live: bool = False
    nth: int = 1
    few: bool = False


def _attached(way: str) -> Point:
    return Point("tracer.kernel.loaded_programs", "LoadedPrograms._attach_one", way=way)


POINTS = {
    "maps made": Point("tracer.kernel.loaded_programs", "LoadedPrograms.__init__"),
    "programs loaded, none attached": Point("tracer.kernel.bpf_syscall", "load_program"),
    "first raw tracepoint attached": _attached("RAWTP"),
    "first raw tracepoint with types attached": _attached("BTFTP"),
    "first fentry attached": _attached("FENTRY"),
    "first fexit attached": _attached("FEXIT"),
    "first kprobe attached": _attached("KPROBE"),
    "first kretprobe attached": _attached("KRETPROBE"),
    "all attached": Point("tracer.kernel.session", "RingBuffer.__init__", entered=True),
    "namespace of the trace switch made": Point("tracer.node.nfnetlink", "Nfnetlink.batch", entered=True, few=True),
    "trace switch on": Point("tracer.rules.nftables.trace_key", "TraceSwitch.__init__", few=True),
    "rules of nftables being read": Point("tracer.rules.nftables.listing", "run", entered=True, few=True),
    "a tool that prints rules just started": Point("subprocess", "Popen.__init__", few=True),
    "rules of iptables being read": Point("tracer.rules.iptables.sockopt", "save", entered=True, few=True),
    "ready": Point("tracer.commands.trace", "write_ready", few=True),
    "tracing": Point("tracer.pipeline.live_source", "LiveSource.read", nth=5, live=True),
    "ending": Point("tracer.kernel.session", "Session.close", entered=True, few=True),
    "detaching": Point("tracer.kernel.loaded_programs", "LoadedPrograms._close", few=True),
    "detached": Point("tracer.kernel.loaded_programs", "LoadedPrograms.close"),
}
"""In the order of a run. The points before are in EARLY or EARLY_WARM; each has a process of its own."""
EARLY = {
    "BTF read": Point("tracer.kernel.session", "Kernel.running"),
    "compiling": Point("tracer.kernel.bcc_compiler", "compile_texts"),
}
"""The early points of a start that compiles."""
EARLY_WARM = {
    "BTF read": Point("tracer.kernel.session", "Kernel.running"),
    "symbols read": Point("tracer.kernel.symbol_cache", "SymbolCache.read"),
    "cache opened": Point("tracer.kernel.cache_directory", "_Directory.__init__"),
    "programs read": Point("tracer.kernel.program_cache", "ProgramCache.read"),
}
"""The early points of a start with programs from the cache."""


def report(**words: object) -> None:
    os.write(3, (json.dumps(words) + "\n").encode())


def die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("alive after SIGKILL")


def arm(point: Point) -> None:
    """Lets this process die at the point."""
    owner: Any = import_module(point.module)
    *classes, name = point.function.split(".")
    for part in classes:
        owner = getattr(owner, part)
    original, calls = getattr(owner, name), [0]

    def reached(arguments: tuple[Any, ...]) -> None:
        calls[0] += not point.way or point.way == arguments[-1]
        if calls[0] != point.nth or (point.way and point.way != arguments[-1]):
            return
        if not point.live:
            die()
        report(at=os.getpid())

    def call(*arguments: Any, **options: Any) -> Any:
        if point.entered:
            reached(arguments)
        result = original(*arguments, **options)
        if not point.entered:
            reached(arguments)
        return result

    setattr(owner, name, call)


class ForkServer:
    """Replaces a function: waits after it has given the programs, and lets forked copies of this process continue."""

    def __init__(self, programs: Callable[..., Any]) -> None:
        self._programs = programs

    def __call__(self, *arguments: Any) -> Any:
        programs = self._programs(*arguments)
        assert programs is not None
        report(compiled=True)
        for line in sys.stdin:
            name = line.strip()
            if pid := os.fork():
                _, status = os.waitpid(pid, 0)
                report(point=name, status=os.waitstatus_to_exitcode(status))
                continue
            self._go_on(name)
            return programs
        die()

    def _go_on(self, name: str) -> None:
        null = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1):
            os.dup2(null, number)
        from tracer.commands import trace
        from tracer.kernel.loaded_programs import LoadedPrograms
        from tracer.pipeline.child import write_ready
        from tracer.pipeline.source import RunLimits

        if POINTS[name].way:  # this kernel or these options may not use this way of attaching
            _replace(trace, write_ready, lambda *_: os._exit(NOT_REACHED))
        if POINTS[name].few:
            watch = LoadedPrograms.watch
            _replace(LoadedPrograms, watch, lambda self, rows: watch(self, rows[::FEW]))
        if POINTS[name].live:  # its --duration could end before the state is compared
            _replace(trace, RunLimits, lambda count, _: RunLimits(count))
        arm(POINTS[name])


def _replace(owner: object, attribute: Callable[..., Any], by: Callable[..., Any]) -> None:
    """Replaces a function or class of a module or class. It is named by itself, so that a new name is noticed."""
    assert getattr(owner, attribute.__name__) is attribute
    setattr(owner, attribute.__name__, by)


def early(name: str) -> None:
    """Dies before there are programs, or inside the compiler."""
    if name != "compiling":
        return arm((EARLY | EARLY_WARM)[name])
    from tracer.kernel import bcc_compiler

    original = bcc_compiler.compile_texts

    def compile_texts(*arguments: Any) -> Any:
        threading.Timer(IN_COMPILER, die).start()
        programs = original(*arguments)
        os._exit(NOT_REACHED)
        return programs

    _replace(bcc_compiler, original, compile_texts)
    return None


def main(first: str, options: list[str]) -> None:
    sys.path.insert(0, str(ROOT))
    os.dup2(1, 3)
    os.dup2(2, 1)
    sys.argv[1:] = options
    from tracer.cli import main as command_line
    from tracer.commands import trace  # noqa: F401  # imported before the text is compiled
    from tracer.kernel import bcc_compiler, cache_directory
    from tracer.kernel.program_source import ProgramSource

    if first != "-":
        early(first)
    elif cache_directory.directory_of_environment():
        stored = ProgramSource.stored
        server = ForkServer(stored)
        _replace(ProgramSource, stored, lambda self: server(self))
    else:
        _replace(bcc_compiler, bcc_compiler.compile_texts, ForkServer(bcc_compiler.compile_texts))
    with suppress(SystemExit):
        command_line.main(options)
    os._exit(NOT_REACHED)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
