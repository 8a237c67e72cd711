# SPDX-License-Identifier: Apache-2.0
"""Compiles the BPF text with bcc, attaches every planned row, and removes everything at the end.

bcc's automatic attaching is off: it attaches by function name and aborts at the first failure. Here a row that cannot be
attached only loses the data of that row.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

from tracer.errors import CompileFailed, NoBcc, NoProbe
from tracer.events import bpf_source
from tracer.kernel import bcc_stubs
from tracer.kernel.attach_plan import KernelAbilities, PlannedProbe, UnavailableProbe
from tracer.kernel.xt_extensions import PlannedExtension


@dataclass(frozen=True)
class _Attachment:
    """bcc's calls for one way of attaching.

    Attributes:
        type: bcc's name of the program type.
        on: Attaches: (bpf, symbol, name of the program) -> None.
        off: Detaches, with the same arguments.
    """

    type: str
    on: Callable[[Any, bytes, bytes], object]
    off: Callable[[Any, bytes, bytes], object]


WAYS = {
    "RAWTP": _Attachment(
        "RAW_TRACEPOINT",
        lambda bpf, symbol, name: bpf.attach_raw_tracepoint(tp=symbol, fn_name=name),
        lambda bpf, symbol, name: bpf.detach_raw_tracepoint(symbol),
    ),
    # For these two the name of the program determines the function.
    "FENTRY": _Attachment(
        "TRACING",
        lambda bpf, symbol, name: bpf.attach_kfunc(fn_name=name),
        lambda bpf, symbol, name: bpf.detach_kfunc(fn_name=name),
    ),
    "FEXIT": _Attachment(
        "TRACING",
        lambda bpf, symbol, name: bpf.attach_kretfunc(fn_name=name),
        lambda bpf, symbol, name: bpf.detach_kretfunc(fn_name=name),
    ),
    "KPROBE": _Attachment(
        "KPROBE",
        lambda bpf, symbol, name: bpf.attach_kprobe(event=symbol, fn_name=name),
        lambda bpf, symbol, name: bpf.detach_kprobe(event=symbol, fn_name=name),
    ),
    # No maxactive: with it, bcc uses tracefs, and its events remain after this process is killed.
    "KRETPROBE": _Attachment(
        "KPROBE",
        lambda bpf, symbol, name: bpf.attach_kretprobe(event=symbol, fn_name=name),
        lambda bpf, symbol, name: bpf.detach_kretprobe(event=symbol, fn_name=name),
    ),
}
"""Attachments by the ways of tracer/kernel/attach_plan.py."""


MOUNTS = Path("/proc/self/mounts")

FLAGS = ["-g0", "-Xclang", "-disable-llvm-passes"]
"""Compiler flags. bcc runs LLVM's passes itself after clang has optimised; without clang's passes compiling takes two fifths
less time for programs of the same size. Debugging information (types and lines, not used here) takes a tenth of the time."""


def load_bcc() -> ModuleType:
    """Imports bcc. PyPI has another project of that name, without a BPF class.

    Raises:
        NoBcc: bcc is not installed, or is the other project.
    """
    try:
        bcc = import_module("bcc")
    except ImportError as e:
        raise NoBcc(
            "The bcc library is missing: install your distribution's package (Debian, Ubuntu: python3-bpfcc; Fedora: "
            f"python3-bcc). ({e})"
        ) from e
    if not hasattr(bcc, "BPF"):
        raise NoBcc(
            f"The bcc in {getattr(bcc, '__file__', None) or 'this Python'} is another project of that name from PyPI: "
            "`pip uninstall bcc`, then install your distribution's package (python3-bpfcc)."
        )
    return bcc


def abilities(bcc: ModuleType) -> KernelAbilities:
    """What this bcc can attach. Its C macros show it: MODULE_KFUNC_PROBE was added with module functions (bcc 0.28)."""
    library = Path(bcc.libbcc.lib._name)
    text = b""
    for directory in (Path("/usr/lib"), Path("/usr/lib64"), *Path("/usr/lib").glob("*-linux-gnu")):
        if (directory / library).is_file():
            text = (directory / library).read_bytes()
            break
    fentry = bool(bcc.BPF.support_kfunc())
    return KernelAbilities(fentry, fentry and b"MODULE_KFUNC_PROBE" in text)


def compiled(bcc: ModuleType, text: str) -> Any:
    """Compiles a BPF text to bcc's object, with nothing attached.

    Raises:
        Exception: The text does not compile; bcc raises plain Exception.
    """

    class Unattached(bcc.BPF):  # type: ignore[name-defined, misc]
        def _trace_autoload(self) -> None:
            return

    os.environ["BCC_KERNEL_SOURCE"] = str(bcc_stubs.directory())
    try:
        return Unattached(text=text, cflags=FLAGS)
    finally:
        del os.environ["BCC_KERNEL_SOURCE"]


def _has_events_in_tracefs() -> bool:
    """Whether bcc has made kprobes of this process in tracefs, which it does if perf_event_open fails."""
    with suppress(OSError):
        mounts = [line.split(" ") for line in MOUNTS.read_text(errors="replace").splitlines()]
        for place in (fields[1] for fields in mounts if fields[2] == "tracefs"):
            with suppress(OSError):
                if f"_bcc_{os.getpid()} " in Path(place, "kprobe_events").read_text(errors="replace"):
                    return True
    return False


class BccProgram:
    """The compiled text and its attached probes; a context manager that detaches them."""

    def __init__(self, bcc: ModuleType, headers: dict[str, str]) -> None:
        """Compiles the BPF text.

        Args:
            bcc: The bcc library.
            headers: Texts of the generated headers by file name.

        Raises:
            CompileFailed: bcc has written the compiler's messages to stderr before.
        """

        self._bcc = bcc
        try:
            self.bpf: Any = compiled(bcc, bpf_source.whole("tracer.c", headers))
        except Exception as e:
            raise CompileFailed(f"The BPF text does not compile on this machine: {e}.") from e
        self.functions: dict[str, Any] = {}

    def attach(self, rows: list[PlannedProbe]) -> tuple[list[PlannedProbe], list[UnavailableProbe]]:
        """Attaches the rows in the order of the probe table.

        Returns:
            Rows that run, and rows that the kernel refused.

        Raises:
            NoProbe: The kernel refused a row that every run needs.
        """
        attached, refused = [], []
        for row in rows:
            try:
                self.functions[row.probe.name] = self._attach(row)
                attached.append(row)
            except Exception as e:  # bcc raises plain Exception
                why = f"the kernel refused it ({str(e).splitlines()[0]})"
                if row.probe.needed:
                    raise NoProbe(f"Tracing needs {row.symbol}, but {why}.") from e
                refused.append(UnavailableProbe(row.probe, why))
        return attached, refused

    def watch(self, rows: list[PlannedExtension]) -> list[PlannedExtension]:
        """Attaches to functions of matches and targets; returns the attached ones. A match by kprobe needs entry and return."""
        return [row for row in rows if self._watch(row)]

    def _watch(self, row: PlannedExtension) -> bool:
        try:
            self._attach(row)
        except Exception:  # as above
            return False
        return True

    def _attach(self, row: PlannedProbe | PlannedExtension) -> Any:
        """Loads and attaches all programs of a row; returns the first one."""
        first, *_ = [self._attach_one(program.encode(), row.symbol.encode(), way) for program, way in row.programs]
        return first

    def _attach_one(self, name: bytes, symbol: bytes, way: str) -> Any:
        function = self.bpf.load_func(name, getattr(self._bcc.BPF, WAYS[way].type))
        WAYS[way].on(self.bpf, symbol, name)
        return function

    def detach(self, rows: Iterable[PlannedProbe | PlannedExtension]) -> None:
        """Detaches the programs of these rows; they stay loaded."""
        for row in rows:
            for program, way in row.programs:
                WAYS[way].off(self.bpf, row.symbol.encode(), program.encode())

    def recursion_misses(self, fd: int) -> int:
        """Number of times the kernel skipped a program because one was running on that CPU.

        It is bpf_prog_info.recursion_misses, since 5.12; 0 before.
        """
        info = (ctypes.c_uint64 * 40)()
        length = ctypes.c_uint32(ctypes.sizeof(info))
        if self._bcc.libbcc.lib.bpf_obj_get_info(fd, ctypes.byref(info), ctypes.byref(length)) < 0:
            return 0
        return int(info[26]) if length.value >= 216 else 0

    def close(self) -> None:
        """Detaches and unloads everything.

        Closing its perf event removes a kprobe. bcc also opens /sys/kernel/debug/tracing/kprobe_events for each kprobe: on a
        node the kernel then mounts tracefs there, and the mount remains; in a container without tracefs bcc raises.
        """
        if not _has_events_in_tracefs():
            for programs in self.bpf.kprobe_fds.values():
                for fd in programs.values():
                    self._bcc.libbcc.lib.bpf_close_perf_event_fd(fd)
                programs.clear()
        self.bpf.cleanup()

    def __enter__(self) -> BccProgram:
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None) -> None:
        self.close()
